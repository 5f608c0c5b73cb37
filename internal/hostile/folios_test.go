package hostile

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/folios/foliotest"
)

// folioSizes are the sizes of folios that are tested, in KiB.
var folioSizes = []int{16, 64, 256}

// Memory of folios is source and destination as other memory is: of each size of a folio, of pfd's
// own user and of another one whose helper pages in, with each method. Its pages are counted once.
// Where folios are not possible the same memory comes in by single pages.
func TestFolios(t *testing.T) { everywhere(t, folios) }

func folios(t *testing.T, on place) {
	needRoot(t, "being several users, and the setting of folios")
	const pages = 256 + 5 // the last five are less than a folio
	for _, kib := range folioSizes {
		t.Run(fmt.Sprint(kib), func(t *testing.T) {
			w := on.start(t) // before Set, for which the tests of other packages wait
			foliotest.Set(t, kib)
			for _, uid := range []uint32{0, strangerUID} {
				for i, method := range append([]string{"gup", "gup"}, methods...) {
					policy := []string{"p1", "p4", "pa"}[i%3]
					t.Run(fmt.Sprintf("uid %d/%s %s", uid, method, policy), func(t *testing.T) {
						w.during(t)
						a := attachOrder{UID: uid, Group: fmt.Sprint(method, policy, uid), Method: method, Policy: policy}
						from := w.attach("initiator", a)
						a.Node = 1
						to := w.attach("target", a)
						from.buffer("src", "alloc", pages<<12, 5)
						m := to.buffer("dst", "folios", pages<<12, 0)
						want := kib / 4
						if method == "uffd" || w.shared {
							want = 1
						}
						if m.Count != want {
							t.Errorf("%d pages come in together, want %d", m.Count, want)
						}
						before := w.count(1, control.CounterPagesIn)
						from.write("x", "src", m.Remote, pages<<12)
						from.arrives("x")
						to.holds("dst", 5, 0, pages<<12)
						// With methods touch and populate the process pages in. Where two page-ins meet in a
						// folio its pages may be counted by neither, or later, but never twice (docs/service.md).
						if n := w.count(1, control.CounterPagesIn) - before; (n > pages || n < uint64(want)) && !w.shared && (method == "gup" || method == "uffd") {
							t.Errorf("%d pages were paged in, want %d to %d", n, want, pages)
						}
						from.buffer("absent", "folios", pages<<12, 0)
						from.write("y", "absent", m.Remote, pages<<12)
						from.arrives("y")
						to.holds("dst", 0, 0, pages<<12)
						from.kill()
						to.kill()
					})
				}
			}
		})
	}
}

// A process may change memory of folios during a transfer: the kernel splits, moves or frees the
// folios, and pfd uses the memory as it is at each block.
func TestFoliosThatChangeInMidTransfer(t *testing.T) { everywhere(t, foliosChange) }

func foliosChange(t *testing.T, on place) {
	needRoot(t, "being several users, and the setting of folios")
	const guardInstall = 102 // MADV_GUARD_INSTALL, Linux 6.13
	sizes := folioSizes
	if on.Shared {
		sizes = sizes[1:2] // single pages, whatever the size
	}
	round := 0
	for _, kib := range sizes {
		t.Run(fmt.Sprint(kib), func(t *testing.T) {
			w := on.start(t) // before Set, for which the tests of other packages wait
			foliotest.Set(t, kib)
			b := w.bystander(attachOrder{})
			for _, c := range []struct {
				name    string
				o       order
				arrives bool // if false, it may also fail with code 2
				whole   bool // every byte equals the source's afterwards
				gone    bool // the memory cannot be read afterwards
			}{
				{"munmap", order{Op: "unmap", Off: dyingSize / 2}, false, false, true},
				{"mremap", order{Op: "move"}, false, false, false},
				{"read-only", order{Op: "protect", Advice: unix.PROT_READ}, false, false, false},
				{"guard pages", order{Op: "advise", Advice: guardInstall, Off: dyingSize / 2, Size: 5 << 12}, false, false, true},
				{"hole punched", order{Op: "advise", Advice: unix.MADV_REMOVE, Off: 3 << 12, Size: dyingSize / 2}, true, false, false},
				{"page punched", order{Op: "advise", Advice: unix.MADV_REMOVE, Off: dyingSize/2 + 3<<12, Size: 1 << 12}, true, false, false},
				{"MADV_DONTNEED", order{Op: "advise", Advice: unix.MADV_DONTNEED}, true, !on.Shared, false},
				{"MADV_PAGEOUT", order{Op: "advise", Advice: unix.MADV_PAGEOUT}, true, true, false},
				{"MADV_COLLAPSE", order{Op: "advise", Advice: unix.MADV_COLLAPSE}, true, true, false},
				{"mapping split", order{Op: "protect", Advice: unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC, Off: 3 << 12, Size: 1 << 12}, true, true, false},
				{"fork", order{Op: "fork"}, true, true, false},
			} {
				t.Run(c.name, func(t *testing.T) {
					w.during(t)
					after := delays[1+round%3]
					round++
					a := attachOrder{Group: fmt.Sprintf("%s-%d", "change", round), Method: methods[round%len(methods)], Policy: []string{"p1", "p4", "pa"}[round%3]}
					if round/len(methods)%2 == 0 {
						a.UID = strangerUID
					}
					p := pair{from: w.attach("initiator", a)}
					a.Node = 1
					p.to = w.attach("target", a)
					p.running("folios", after)
					if c.o.Advice == unix.MADV_COLLAPSE {
						foliotest.Allow(t, 2048)
					}
					c.o.ID = "b"
					// The kernel may refuse (EAGAIN, EBUSY, EINVAL): then the memory is unchanged.
					if r, err := p.to.do(c.o); err != nil || r.Err != "" {
						t.Logf("%s: %s %v", c.o.Op, r.Err, err)
					}
					switch r := p.from.wait("x"); {
					case !r.Done && c.arrives:
						t.Errorf("after %v: did not arrive: %+v", after, r)
					case !r.Done && r.Code != device.StatusDecode:
						t.Errorf("after %v: %+v, want code 2", after, r)
					case c.whole && (a.Method != "uffd" || c.o.Advice != unix.MADV_DONTNEED): // with uffd memory is private
						p.to.holds("b", 7, 0, dyingSize)
					case !c.gone:
						p.to.must(order{Op: "either", ID: "b", Seed: 7})
					}
					again := p.to.buffer("again", "folios", 1<<20, 0)
					p.from.write("y", "b", again.Remote, 1<<20)
					p.from.arrives("y")
					p.to.holds("again", 7, 0, 1<<20)
					p.kill()
				})
			}
			b.fine()
		})
	}
}

// Memory that is paged in for a process is charged to the control group of the process, not to that
// of pfd: with and without folios, with each method, and if a memory helper pages in.
func TestMemoryIsChargedToItsProcess(t *testing.T) {
	const size, slack = 32 << 20, 4 << 20
	ours, theirs := newMemoryGroup(t), newMemoryGroup(t)
	w := start(t)
	foliotest.Set(t, 64)
	ours.add(w.cmd.Process.Pid)
	for _, uid := range []uint32{0, strangerUID} {
		for _, method := range methods {
			for _, kind := range []string{"folios", "alloc", "anonymous"} {
				t.Run(fmt.Sprintf("uid %d/%s/%s", uid, method, kind), func(t *testing.T) {
					w.during(t)
					a := attachOrder{UID: uid, Group: fmt.Sprint(method, uid, kind), Method: method, Policy: "pa"}
					from := w.attach("initiator", a)
					a.Node = 1
					to := w.attach("target", a)
					theirs.add(to.pid())
					from.buffer("src", "alloc", size, 5)
					m := to.buffer("dst", kind, size, 0)
					pfd, process := ours.usage(), theirs.usage()
					from.write("x", "src", m.Remote, size)
					from.arrives("x")
					pfd, process = ours.usage()-pfd, theirs.usage()-process
					if process < size-slack || pfd > slack {
						t.Errorf("of %d bytes the process is charged for %d and pfd for %d", size, process, pfd)
					}
					from.kill()
					to.kill()
				})
			}
		}
	}
}
