package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A process forks. Its child executes no program and keeps all descriptors, like a daemon. When
// the parent ends or executes another program, the attachment and all names of its memory end.
func TestForkedChildLivesOn(t *testing.T) { everywhere(t, forkedChildLivesOn) }

func forkedChildLivesOn(t *testing.T, on place) {
	image, err := self()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"exit", "kill", "exec"} {
		t.Run(how, func(t *testing.T) {
			w := on.start(t)
			p := w.attach("parent", attachOrder{UID: forkedUID})
			r := p.must(order{Op: "daemonize"})
			defer unix.Kill(r.Count, unix.SIGKILL)
			if n := keepersOf(t, forkedUID); n == 0 {
				t.Error("no keeper while the process is attached")
			}
			switch how {
			case "exit":
				_ = p.in.Close() // ends the agent
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

// forkedUID is a uid that is not in use.
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
			continue // the process has ended
		}
		s := string(b)
		if strings.HasPrefix(s, "Name:\texanet-keeper\n") && strings.Contains(s, fmt.Sprintf("\nUid:\t%d\t", uid)) && !strings.Contains(s, "\nState:\tZ") {
			n++
		}
	}
	return n
}
