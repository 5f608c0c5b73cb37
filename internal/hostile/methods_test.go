package hostile

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Every method pages in memory that was never present, memory that was removed, and memory that
// was only read, at either end, and by every policy.
func TestMethods(t *testing.T) { onEach(t, eachMethod) }

func eachMethod(t *testing.T, w *world) {
	b := w.bystander(attachOrder{})
	const size = 1<<20 + 8192
	for _, method := range methods {
		for _, policy := range []string{"p1", "p4", "pa"} {
			t.Run(method+"/"+policy, func(t *testing.T) {
				w.during(t)
				p := w.pair(method, policy)
				p.from.buffer("src", "anonymous", size, 5)
				m := p.to.buffer("dst", "anonymous", size, 0)
				once := func(name string, seed uint64) {
					t.Helper()
					p.from.must(order{Op: "fill", ID: "src", Seed: seed})
					p.from.write(name, "src", m.Remote, size)
					p.from.arrives(name)
					p.to.holds("dst", seed, 0, size)
				}
				before := w.count(1, hw(device.FIFOPush))
				once("absent", 5)
				if w.count(1, hw(device.FIFOPush)) == before {
					t.Error("nothing faulted")
				}
				p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED})
				once("absent again", 6)
				p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED})
				p.to.must(order{Op: "check", ID: "dst", Size: size}) // maps the zero page
				once("only read", 7)
				// Every other page.
				for at := uint64(0); at < size; at += 8192 {
					p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED, Off: at, Size: 4096})
				}
				once("every other", 8)
				// An absent source reads as zeros.
				p.from.must(order{Op: "advise", ID: "src", Advice: unix.MADV_DONTNEED})
				p.from.write("zeros", "src", m.Remote, size)
				p.from.arrives("zeros")
				p.to.holds("dst", 0, 0, size)
				if w.shared {
					p.kill()
					return
				}
				// Unmapped and forbidden memory fails with code 2.
				p.to.must(order{Op: "protect", ID: "dst", Advice: unix.PROT_READ})
				p.from.write("denied", "src", m.Remote, size)
				if r := p.from.wait("denied"); r.Code != device.StatusDecode {
					t.Errorf("read-only memory: %+v", r)
				}
				p.to.must(order{Op: "unmap", ID: "dst"})
				p.from.write("gone", "src", m.Remote, size)
				if r := p.from.wait("gone"); r.Code != device.StatusDecode {
					t.Errorf("unmapped memory: %+v", r)
				}
				p.kill()
			})
		}
	}
	if os.Geteuid() == 0 {
		// With a helper if pfd has other rights than the process.
		for _, method := range methods {
			t.Run(method+"/another user", func(t *testing.T) {
				w.during(t)
				a := attachOrder{Group: "another", Method: method, Policy: "p4", UID: nobodyUID}
				from := w.attach("initiator", a)
				a.Node = 1
				to := w.attach("target", a)
				from.buffer("src", "anonymous", size, 5)
				m := to.buffer("dst", "anonymous", size, 0)
				from.write("x", "src", m.Remote, size)
				from.arrives("x")
				to.holds("dst", 5, 0, size)
				from.kill()
				to.kill()
			})
		}
	}
	b.fine()
}

// Prefetched memory does not fault, and may become absent again.
func TestPrefetch(t *testing.T) { onEach(t, prefetch) }

func prefetch(t *testing.T, w *world) {
	for _, method := range methods {
		w.during(t)
		p := w.pair(method, "p1")
		p.from.buffer("src", "anonymous", 1<<20, 5)
		m := p.to.buffer("dst", "anonymous", 1<<20, 0)
		p.to.must(order{Op: "prefetch", ID: "dst"})
		before := w.count(1, hw(device.FIFOPush))
		p.from.write("x", "src", m.Remote, 1<<20)
		p.from.arrives("x")
		if n := w.count(1, hw(device.FIFOPush)) - before; n != 0 {
			t.Errorf("%s: %d faults in prefetched memory", method, n)
		}
		p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED})
		p.from.write("y", "src", m.Remote, 1<<20)
		p.from.arrives("y")
		if w.count(1, hw(device.FIFOPush)) == before {
			t.Errorf("%s: removed memory does not fault", method)
		}
		p.to.holds("dst", 5, 0, 1<<20)
		if s := p.to.must(order{Op: "stats"}).Stats; s.NumPrefetchesHandled != 1 {
			t.Errorf("%s: %d prefetches counted", method, s.NumPrefetchesHandled)
		}
		if r, err := p.to.do(order{Op: "buffer", ID: "hole", Kind: "hole", Size: 8192}); err != nil || r.Err != "" {
			t.Fatal(r.Err, err)
		}
		if r, _ := p.to.do(order{Op: "prefetch", ID: "hole"}); r.Err == "" {
			t.Errorf("%s: a prefetch of unmapped memory returned no error", method)
		}
		p.kill()
	}
}

// Large transfers and huge pages: absent, present, and split during writes.
func TestLargeTransfers(t *testing.T) { onEach(t, largeTransfers) }

func largeTransfers(t *testing.T, w *world) {
	const size = 64 << 20
	for i, method := range methods {
		for _, kind := range []string{"anonymous", "huge"} {
			if kind == "huge" && (w.shared || method != "gup" && method != "touch") {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", method, kind), func(t *testing.T) {
				w.during(t)
				p := w.pair(method, []string{"pa", "p4"}[i%2])
				p.from.buffer("src", kind, size, 3)
				m := p.to.buffer("dst", kind, size, 0)
				for _, seed := range []uint64{3, 4} { // absent, then present
					p.from.must(order{Op: "fill", ID: "src", Seed: seed})
					p.from.write("x", "src", m.Remote, size)
					if kind == "huge" {
						for at := uint64(4096); at < size; at += 8 << 20 {
							p.to.must(order{Op: "protect", ID: "dst", Off: at, Size: 4096, Advice: unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC})
						}
					}
					p.from.arrives("x")
					p.to.holds("dst", seed, 0, size)
				}
				p.kill()
			})
		}
	}
}
