package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Each page-in that hangs holds a thread of pfd. If pids.max leaves few threads, pfd lives on,
// refuses page-ins of processes with hanging ones and states the cause, and serves processes
// without, of the same user and of others.
func TestThreadsRunOut(t *testing.T) {
	needRoot(t, "a full-mode userfaultfd")
	g := newGroup(t, "pids")
	w := start(t)
	pid := w.cmd.Process.Pid
	b := w.bystander(attachOrder{})
	g.add(pid)
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "pids.max"), []byte(strconv.Itoa(len(tasks)+16)), 0); err != nil {
		t.Skipf("no limit of tasks: %v", err)
	}
	const size, buffers = 64 << 10, 16
	var hanging []*proxy
	for i := range 6 {
		p := w.attach(fmt.Sprint("hangs", i), attachOrder{Group: "hang"})
		p.buffer("src", "anonymous", size, 5)
		hanging = append(hanging, p)
		for j := range buffers {
			id := fmt.Sprint("b", j)
			p.write(id, "src", p.buffer(id, "own userfaultfd", size, 0).Remote, size)
		}
	}
	w.until("a call is refused", func() bool { return w.count(0, "calls_refused_total") > 0 })
	same := w.attach("same user", attachOrder{Group: "hang"})
	same.buffer("src", "anonymous", size, 7)
	for i := range 4 {
		id := fmt.Sprint("m", i)
		m := same.buffer(id, "anonymous", size, 0)
		same.write(id, "src", m.Remote, size)
		same.arrives(id)
		same.holds(id, 7, 0, size)
	}
	b.fine()
	// All transfers but the hanging ones get this error.
	w.until("a transfer whose page-ins are refused ends with status 11", func() bool {
		for _, p := range hanging {
			for j := range buffers {
				id := fmt.Sprint("b", j)
				if p.must(order{Op: "poll", ID: id}).Done {
					if r := p.wait(id); r.Code != 11 {
						t.Errorf("a refused transfer ends with %d, %s", r.Code, r.Text)
					}
					return true
				}
			}
		}
		return false
	})
	for _, p := range hanging {
		p.kill()
	}
	b.fine()
}
