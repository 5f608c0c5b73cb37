package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process forks, and its child executes nothing and lives on with all of its
// descriptors, as a daemon's does. When the parent ends, or executes another program,
// so do the attachment and all that names its memory.
func TestForkedChildLivesOn(t *testing.T) {
	image, err := self()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"exit", "kill", "exec"} {
		t.Run(how, func(t *testing.T) {
			w := start(t)
			p := w.attach("parent", attachOrder{UID: forkedUID})
			r := p.must(order{Op: "daemonize"})
			defer unix.Kill(r.Count, unix.SIGKILL)
			if n := keepersOf(t, forkedUID); n == 0 {
				t.Error("no keeper while the process is attached")
			}
			switch how {
			case "exit":
				_ = p.in.Close() // the agent ends
				if err := p.cmd.Wait(); err != nil {
					t.Error(err)
				}
				p.over = true
			case "kill":
				p.kill()
			case "exec":
				p.must(order{Op: "exec", Path: image})
			}
			w.until("the slot is free", func() bool { return w.domains() == 0 })
			w.until("no keeper is left", func() bool { return keepersOf(t, forkedUID) == 0 })
			if err := unix.Kill(r.Count, 0); err != nil {
				t.Error("the child has ended: ", err)
			}
		})
	}
}

// forkedUID is a user that nobody has.
const forkedUID = 60301

// keepersOf counts the living keepers of a user's processes.
func keepersOf(t *testing.T, uid int) (n int) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		s := string(b)
		if strings.HasPrefix(s, "Name:\texanet-keeper\n") && strings.Contains(s, fmt.Sprintf("\nUid:\t%d\t", uid)) && !strings.Contains(s, "\nState:\tZ") {
			n++
		}
	}
	return n
}
