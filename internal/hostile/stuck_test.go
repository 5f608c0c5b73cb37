package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A pfd that is killed while a page-in hangs in a file system leaves nothing behind that
// matters: the next pfd starts at once at the same socket, and attached processes are notified.
func TestKilledWithAPageInThatHangs(t *testing.T) {
	for _, way := range []struct {
		name string
		uid  uint32
	}{{"direct", 0}, {"helper", strangerUID}} {
		t.Run(way.name, func(t *testing.T) {
			w := start(t)
			old := w.ended
			t.Cleanup(func() { <-old }) // ends when the file system is gone
			path := hangingFile(t, w.dir)
			target := w.attach("target", attachOrder{Node: 1, Group: "slow", UID: way.uid})
			from := w.attach("initiator", attachOrder{Group: "slow", UID: way.uid})
			m := target.must(order{Op: "buffer", ID: "b", Kind: "path", Size: fuseSize, Path: path})
			from.must(order{Op: "buffer", ID: "b", Size: fuseSize})
			from.write("x", "b", m.Remote, fuseSize)
			pid := w.cmd.Process.Pid
			w.until("a page-in hangs", func() bool { return hangs(pid) || hangs(helperOf(t, target.pid())) })
			t.Logf("it hangs in pfd: %v", hangs(pid))
			if err := w.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			w.until("pfd's first thread has ended", func() bool {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				return err != nil || strings.Contains(string(b), ") Z ")
			})
			w.cmd = nil
			if err := w.run(); err != nil {
				t.Errorf("the next pfd: %v", err)
			}
			r, err := from.do(order{Op: "wait", ID: "x"})
			if err != nil || r.Code != 10 {
				t.Errorf("the process that waited for the dead pfd: %+v, %v, want code 10", r, err)
			}
			from.kill()
			b := w.bystander(attachOrder{})
			b.fine()
		})
	}
}

// A process whose memory helper hangs in its memory can still detach. It is told that a started
// access may still complete. Its slot becomes free.
func TestCloseWhileTheHelperHangs(t *testing.T) {
	w := start(t)
	b := w.bystander(attachOrder{})
	path := hangingFile(t, w.dir)
	target := w.attach("target", attachOrder{Node: 1, Group: "slow", UID: strangerUID})
	from := w.attach("initiator", attachOrder{Group: "slow", UID: strangerUID})
	m := target.must(order{Op: "buffer", ID: "b", Kind: "path", Size: fuseSize, Path: path})
	from.must(order{Op: "buffer", ID: "b", Size: fuseSize})
	from.write("x", "b", m.Remote, fuseSize)
	w.until("a page-in hangs", func() bool { return hangs(helperOf(t, target.pid())) })
	r, err := target.do(order{Op: "close"})
	if err != nil || !strings.Contains(r.Err, "memory helper has not ended") {
		t.Errorf("Close returns %q, %v", r.Err, err)
	}
	from.kill()
	w.until("the slots are free", func() bool { return w.domains() == 2 })
	b.fine()
}

// hangs reports whether a thread of a process is in a call that accesses another process's
// memory.
func hangs(pid int) bool {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	for _, path := range list {
		b, err := os.ReadFile(path)
		var nr int
		if n, _ := fmt.Sscan(string(b), &nr); err == nil && n == 1 && (nr == unix.SYS_PROCESS_VM_READV || nr == unix.SYS_PROCESS_VM_WRITEV) {
			return true
		}
	}
	return false
}

// helperOf returns the pid of a process's memory helper, or 0.
func helperOf(t *testing.T, pid int) int {
	t.Helper()
	for _, helper := range helpers(t, pid) {
		return helper
	}
	return 0
}
