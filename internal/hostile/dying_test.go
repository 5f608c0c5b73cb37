package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// delays are the times after the start of a transfer of dyingSize into absent memory when a
// test acts: before the first block, in the middle, near the end. They select when to act, and
// no test relies on what happened before.
var delays = []time.Duration{0, 50 * time.Microsecond, 300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 8 * time.Millisecond}

const dyingSize = 8 << 20

var methods = []string{"gup", "touch", "uffd", "populate"}

// pair is an initiator on node 0 and a target on node 1.
type pair struct{ from, to *proxy }

func (w *world) pair(method, policy string) pair {
	w.t.Helper()
	group := fmt.Sprintf("pair%d", time.Now().UnixNano())
	if w.far != nil {
		group = "pair" // with a PDID that both hosts know
	}
	o := attachOrder{Group: group, Method: method, Policy: policy, UID: w.uid()}
	from := w.attach("initiator", o)
	o.Node = 1
	return pair{from, w.attach("target", o)}
}

// uid is that of pfd's user, 0 if it is this test's.
func (w *world) uid() uint32 {
	if w.credential == nil {
		return 0
	}
	return w.credential.Uid
}

// running starts a transfer and lets it run for a while.
func (p pair) running(kind string, after time.Duration) reply {
	p.from.t.Helper()
	p.from.buffer("b", "anonymous", dyingSize, 7)
	m := p.to.buffer("b", kind, dyingSize, 0)
	p.from.write("x", "b", m.Remote, dyingSize)
	time.Sleep(after)
	return m
}

func (p pair) kill() { p.from.kill(); p.to.kill() }

// If a process is killed in any phase of a transfer, the other end loses only that transfer and
// gets a reason. Other processes are not affected, and the slot is free again.
func TestKilledInMidTransfer(t *testing.T) { onEach(t, killedInMidTransfer) }

func killedInMidTransfer(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	for _, method := range methods {
		for _, role := range []string{"target", "initiator"} {
			for i, after := range delays {
				policy := []string{"p1", "p4", "pa"}[i%3]
				t.Run(fmt.Sprintf("%s/%s/%v", method, role, after), func(t *testing.T) {
					w.during(t)
					p := w.pair(method, policy)
					p.running("anonymous", after)
					if role == "target" {
						p.to.kill()
						if r := p.from.wait("x"); !r.Done && (r.Code == 0 || r.Text == "") {
							t.Errorf("no reason: %+v", r)
						}
					} else {
						p.from.kill()
						w.until("the initiator's slot is free", func() bool { return w.domains() == 3 })
						// Data that did not arrive left the memory unchanged, by block or by
						// byte.
						p.to.must(order{Op: "either", ID: "b", Seed: 7})
					}
					p.kill()
					w.until("both slots are free", func() bool { return w.domains() == 2 })
				})
			}
		}
	}
	w.saw(1, "attachments_ended_total", 40)
	b.fine()
}

// A stopped process loses nothing: transfers that need no help from it arrive, the others
// continue when it does.
func TestStoppedInMidTransfer(t *testing.T) { onEach(t, stoppedInMidTransfer) }

func stoppedInMidTransfer(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	for i, after := range delays {
		for _, role := range []string{"target", "initiator"} {
			method := methods[i%len(methods)]
			t.Run(fmt.Sprintf("%s/%s/%v", method, role, after), func(t *testing.T) {
				w.during(t)
				p := w.pair(method, "p4")
				stopped := p.to
				if role == "initiator" {
					stopped = p.from
				}
				p.running("anonymous", after)
				stopped.signal(syscall.SIGSTOP)
				b.some()
				stopped.signal(syscall.SIGCONT)
				p.from.arrives("x")
				p.to.holds("b", 7, 0, dyingSize)
				p.kill()
			})
		}
	}
	b.fine()
}

// A process may change its memory during a transfer: pfd uses the memory as it is at each
// block.
func TestMemoryThatChangesInMidTransfer(t *testing.T) { onEach(t, memoryChanges) }

func memoryChanges(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	for _, c := range []struct {
		name, kind string
		o          order
		arrives    bool // if false, it may also fail with code 2
		whole      bool // every byte equals the source's afterwards
	}{
		{"munmap", "anonymous", order{Op: "unmap", Off: dyingSize / 2}, false, false},
		{"mremap", "anonymous", order{Op: "move"}, false, false},
		{"mprotect", "anonymous", order{Op: "protect", Advice: unix.PROT_READ}, false, false},
		{"mprotect none", "anonymous", order{Op: "protect", Advice: unix.PROT_NONE, Off: dyingSize / 2}, false, false},
		{"MADV_DONTNEED", "anonymous", order{Op: "advise", Advice: unix.MADV_DONTNEED}, true, false},
		{"MADV_FREE", "anonymous", order{Op: "advise", Advice: unix.MADV_FREE}, true, false},
		{"MADV_PAGEOUT", "anonymous", order{Op: "advise", Advice: unix.MADV_PAGEOUT}, true, true},
		{"MADV_COLLAPSE", "huge", order{Op: "advise", Advice: unix.MADV_COLLAPSE}, true, true},
		{"huge page split", "huge", order{Op: "protect", Advice: unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC, Off: 3 * 4096, Size: 4096}, true, true},
		{"fork", "anonymous", order{Op: "fork"}, true, true},
		{"hole punched", "memfd", order{Op: "punch", Size: dyingSize}, true, false},
		{"truncated", "memfd", order{Op: "truncate", Off: dyingSize / 2}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.during(t)
			if w.shared && c.kind != "anonymous" {
				t.Skip("memory of this kind cannot be shared")
			}
			arrived, failed := 0, 0
			for i, after := range delays {
				method := methods[i%len(methods)]
				p := w.pair(method, []string{"p1", "p4", "pa"}[i%3])
				m := p.running(c.kind, after)
				c.o.ID = "b"
				// The kernel may refuse (EAGAIN, EBUSY): then the memory is unchanged.
				if r, err := p.to.do(c.o); err != nil || r.Err != "" {
					t.Logf("%s: %s %v", c.o.Op, r.Err, err)
				}
				r := p.from.wait("x")
				switch {
				case r.Done:
					arrived++
				case c.arrives:
					t.Errorf("after %v: did not arrive: %+v", after, r)
				default:
					failed++
					if r.Code != device.StatusDecode {
						t.Errorf("after %v: %+v, want code 2", after, r)
					}
				}
				switch {
				case c.whole:
					p.to.holds("b", 7, 0, dyingSize)
				case c.arrives:
					p.to.must(order{Op: "either", ID: "b", Seed: 7})
				}
				// The target lives on, and its other memory works as before.
				again := p.to.buffer("again", "anonymous", 1<<20, 0)
				p.from.write("y", "b", again.Remote, 1<<20)
				p.from.arrives("y")
				p.to.holds("again", 7, 0, 1<<20)
				_ = m
				p.kill()
			}
			t.Logf("%d arrived, %d failed", arrived, failed)
		})
	}
	b.fine()
}

// After an exec, set-uid or not, no byte reaches the new program, though its sockets stay open:
// pfd names the address space, not the pid.
func TestExecInMidTransfer(t *testing.T) {
	needRoot(t, "a set-uid image")
	w := start(t)
	b := w.bystander(attachOrder{})
	program, err := self()
	if err != nil {
		t.Fatal(err)
	}
	setuid := filepath.Join(work, "setuid")
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(setuid, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(setuid, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{program, setuid} {
		for i, after := range delays {
			t.Run(fmt.Sprintf("%s/%v", filepath.Base(image), after), func(t *testing.T) {
				w.during(t)
				const where, size = 0x7000_0000_0000, 32 << 20
				p := w.pair("gup", []string{"p1", "pa"}[i%2])
				p.from.buffer("b", "anonymous", size, 7)
				m := p.to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: where, Size: size})
				p.from.write("x", "b", m.Remote, size)
				time.Sleep(after)
				p.to.must(order{Op: "exec", Path: image}) // the new image replies
				// The new image has its own memory at the same address.
				p.to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: where, Size: size})
				r := p.from.wait("x")
				if r.Done {
					t.Log("it had arrived before")
				} else if r.Code == 0 || r.Text == "" {
					t.Errorf("no reason: %+v", r)
				}
				// A write now fails: first because the memory is gone, and after pfd has ended
				// the domain because the domain is gone.
				for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
					p.from.write("y", "b", m.Remote, 4096)
					r := p.from.wait("y")
					if !r.Done && (r.Code == 5 || r.Code == 10) {
						break
					}
					if r.Done || r.Code != 2 || time.Now().After(deadline) {
						t.Errorf("a write to the former target: %+v, want code 5", r)
						break
					}
				}
				p.to.holds("b", 0, 0, size)
				p.kill()
			})
		}
	}
	b.fine()
}

// pfd does not use a pid that now belongs to another process.
func TestPIDUsedAgain(t *testing.T) {
	const lastPID = "/proc/sys/kernel/ns_last_pid"
	if f, err := os.OpenFile(lastPID, os.O_WRONLY, 0); err != nil {
		t.Skipf("pids cannot be chosen here: %v", err)
	} else {
		_ = f.Close()
	}
	w := start(t)
	b := w.bystander(attachOrder{})
	reused := 0
	for _, after := range delays {
		const where = 0x7000_0000_0000
		p := w.pair("gup", "p1")
		p.from.buffer("b", "anonymous", dyingSize, 7)
		m := p.to.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: where, Size: dyingSize})
		p.from.write("x", "b", m.Remote, dyingSize)
		time.Sleep(after)
		pid := p.to.pid()
		p.to.kill()
		var heir *proxy
		for range 20 {
			if err := os.WriteFile(lastPID, []byte(fmt.Sprint(pid-1)), 0); err != nil {
				t.Skipf("pids cannot be chosen here: %v", err)
			}
			if heir = w.spawn("heir", 0); heir.pid() == pid {
				reused++
				break
			}
			heir.kill()
		}
		if heir.pid() != pid {
			p.kill()
			continue // other processes got the pid each time
		}
		heir.must(order{Op: "buffer", ID: "b", Kind: "fixed", Off: where, Size: dyingSize})
		if r := p.from.wait("x"); !r.Done && r.Code == 0 {
			t.Errorf("no reason: %+v", r)
		}
		heir.holds("b", 0, 0, dyingSize)
		heir.kill()
		p.kill()
	}
	if reused == 0 {
		t.Skip("no pid was reused")
	}
	t.Logf("%d of %d pids were reused", reused, len(delays))
	b.fine()
}

// pfd is killed in every phase of a transfer and restarted at the same path. Waiting processes
// are notified at once, completed transfers have arrived, and attaching again works.
func TestPfdKilled(t *testing.T) { onEach(t, pfdKilled, "--guard-us", "5000") }

func pfdKilled(t *testing.T, w *world) {
	for _, method := range methods {
		for i, after := range delays {
			t.Run(fmt.Sprintf("%s/%v", method, after), func(t *testing.T) {
				w.during(t)
				policy := []string{"p1", "p4", "pa"}[i%3]
				p := w.pair(method, policy)
				first := p.to.buffer("first", "anonymous", 1<<20, 0)
				p.from.buffer("one", "anonymous", 1<<20, 3)
				p.from.write("w", "one", first.Remote, 1<<20)
				p.from.arrives("w")
				p.running("anonymous", after)
				w.kill()
				began := time.Now()
				r := p.from.wait("x")
				if took := time.Since(began); took > hung {
					t.Errorf("the initiator waited %v for a dead daemon", took)
				}
				switch {
				case r.Done:
					p.to.holds("b", 7, 0, dyingSize)
				case r.Code != 10 || !strings.Contains(r.Text, "attach again"):
					t.Errorf("%+v, want code 10 and the remedy", r)
				default:
					p.to.must(order{Op: "either", ID: "b", Seed: 7})
				}
				p.to.holds("first", 3, 0, 1<<20)
				if err := w.run(); err != nil {
					t.Fatal(err)
				}
				for node, side := range []*proxy{p.from, p.to} {
					side.must(order{Op: "gone"}) // the old endpoint reports it
					side.must(order{Op: "close"})
					side.must(order{Op: "attach", Attach: attachOrder{Socket: w.socket(), Node: uint32(node), Group: "again", Method: method, Policy: policy}})
				}
				if w.shared { // with the pfd that was killed
					p.from.buffer("one", "anonymous", 1<<20, 3)
				}
				m := p.to.buffer("again", "anonymous", 1<<20, 0)
				p.from.write("y", "one", m.Remote, 1<<20)
				p.from.arrives("y")
				p.to.holds("again", 3, 0, 1<<20)
				p.kill()
			})
		}
	}
}
