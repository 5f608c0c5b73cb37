package hostile

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
)

// A pfd of an ordinary user without capabilities serves other users' processes: their own
// helpers access their memory.
func TestOtherUsersWithoutPrivilege(t *testing.T) { everywhere(t, otherUsersWithoutPrivilege) }

func otherUsersWithoutPrivilege(t *testing.T, on place) {
	needRoot(t, "being several users")
	const stranger, server = 3101, 3100
	w := unprivileged(t, server, on)
	trust := []uint32{server}
	b := w.bystander(attachOrder{UID: stranger, Trust: trust})
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w.during(t)
			group := "stranger-" + method
			from := w.attach("initiator", attachOrder{UID: stranger, Group: group, Method: method, Trust: trust})
			to := w.attach("target", attachOrder{UID: stranger, Group: group, Method: method, Trust: trust, Node: 1})
			m, err := to.do(order{Op: "buffer", ID: "b", Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if m.Err != "" {
				t.Skip(m.Err) // no userfaultfd for this user
			}
			from.must(order{Op: "buffer", ID: "b", Size: 1 << 20, Seed: 7})
			from.write("x", "b", m.Remote, 1<<20)
			from.arrives("x")
			to.holds("b", 7, 0, 1<<20)
			from.kill()
			to.kill()
		})
	}
	b.fine()
}

// pfd itself pages in and moves memory that another user's process shares, without its helper.
// It asks the helper only for memory that no userfaultfd fills.
func TestSharedByOtherUsers(t *testing.T) {
	const size = 1 << 20
	w := start(t)
	for _, tt := range []struct {
		kind, group string
		asks        bool
	}{{"alloc", "filled", false}, {"shared, mapped anew", "asked", true}} {
		t.Run(tt.kind, func(t *testing.T) {
			w.during(t)
			from := w.attach("initiator", attachOrder{UID: strangerUID, Group: tt.group})
			to := w.attach("target", attachOrder{UID: strangerUID, Group: tt.group, Node: 1})
			from.buffer("b", "alloc", size, 7)
			m := to.buffer("b", tt.kind, size, 0)
			helpers := []int{helperOf(t, from.pid()), helperOf(t, to.pid())}
			signal := func(s unix.Signal) {
				for _, pid := range helpers {
					if pid == 0 {
						t.Fatal("a process has no helper")
					}
					if err := unix.Kill(pid, s); err != nil {
						t.Fatal(err)
					}
				}
			}
			signal(unix.SIGSTOP)
			before := w.count(1, control.CounterPagesIn)
			from.write("x", "b", m.Remote, size)
			if tt.asks {
				time.Sleep(100 * time.Millisecond)
				if r := from.must(order{Op: "poll", ID: "x"}); r.Done {
					t.Error("no process pages in, but the transfer has ended")
				}
				signal(unix.SIGCONT)
			}
			from.arrives("x")
			if !tt.asks {
				signal(unix.SIGCONT)
			}
			to.holds("b", 7, 0, size)
			// Requests to a stopped helper are repeated once, page by page.
			if n := w.count(1, control.CounterPagesIn) - before; n < size/4096 || n > size/4096 && !tt.asks {
				t.Errorf("%d pages were paged in, want %d", n, size/4096)
			}
			from.kill()
			to.kill()
		})
	}
}
