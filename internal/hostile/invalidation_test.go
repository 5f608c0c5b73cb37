package hostile

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/rdma"
)

// Like ODP's num_invalidation_pages, as far as visible: each page that was present at one
// access and absent at the next counts once, and no other page counts.
func TestInvalidationsAreCounted(t *testing.T) {
	const pages = 64
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w := start(t)
			// One page a fault: further pages that a policy pages in may be present again
			// before an access finds them absent.
			p := w.pair(method, "p1")
			p.from.buffer("src", "anonymous", pages*4096, 5)
			m := p.to.buffer("dst", "anonymous", pages*4096, 0)
			seen := [2]uint64{}
			for _, c := range []struct {
				name string
				do   func()
				want [2]uint64 // by node
			}{
				{"absent memory", func() {}, [2]uint64{}},
				{"memory that is still there", func() {}, [2]uint64{}},
				{"ten pages given back", func() {
					p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED, Off: 7 * 4096, Size: 10 * 4096})
				}, [2]uint64{0, 10}},
				{"all of them, and only read again", func() {
					p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED})
					p.to.must(order{Op: "check", ID: "dst"}) // the zero page: a fault, but not an invalidation
				}, [2]uint64{}},
				{"three pages of the source", func() {
					p.from.must(order{Op: "advise", ID: "src", Advice: unix.MADV_DONTNEED, Size: 3 * 4096})
				}, [2]uint64{3, 0}},
				{"a target that is unmapped", func() { p.to.must(order{Op: "unmap", ID: "dst"}) }, [2]uint64{0, 1}},
			} {
				c.do()
				p.from.write("x", "src", m.Remote, pages*4096)
				if r := p.from.wait("x"); r.Code != 0 && c.name != "a target that is unmapped" {
					t.Fatalf("%s: %s", c.name, r.Text)
				}
				for node, old := range seen {
					seen[node] = w.count(node, control.CounterInvalidationPages)
					n := seen[node] - old
					if c.name == "a target that is unmapped" && node == 1 {
						// Each block ends at its first absent page.
						if n == 0 || n > pages {
							t.Errorf("%s: node %d counts %d", c.name, node, n)
						}
					} else if n != c.want[node] {
						t.Errorf("%s: node %d counts %d invalidated pages, want %d", c.name, node, n, c.want[node])
					}
				}
			}
			// Each process sees its own count, whichever process pages in.
			for node, q := range []*proxy{p.from, p.to} {
				var s rdma.Stats
				// A transfer fails with its first block, and faults of the other blocks follow.
				w.until("the process sees the pages that its node counts", func() bool {
					s, seen[node] = q.must(order{Op: "stats"}).Stats, w.count(node, control.CounterInvalidationPages)
					return s.NumInvalidationPages == seen[node]
				})
				least := [2]uint64{3, pages + 10 + pages}[node]
				if s.NumPageFaults < least && method != "touch" || s.NumPageFaults == 0 || // touch: a message may ask for several
					s.NumPageFaultPages < least {
					t.Errorf("the process of node %d sees %+v; want at least %d faults", node, s, least)
				}
				if failed := s.NumFailedResolutions > 0; failed != (node == 1) {
					t.Errorf("the process of node %d sees %d failed resolutions", node, s.NumFailedResolutions)
				}
			}
		})
	}
}

// Memory registered with CountInvalidations has each call counted that removes pages: for its
// process, its node and in /v1, and for no other.
func TestInvalidationCallsAreCounted(t *testing.T) {
	w := start(t)
	const pages = 16
	p := pair{
		w.attach("initiator", attachOrder{Group: "calls", Method: "uffd"}),
		w.attach("target", attachOrder{Group: "calls", Method: "uffd", Node: 1, Count: true}),
	}
	p.from.buffer("src", "anonymous", pages*4096, 5)
	m := p.to.buffer("dst", "anonymous", pages*4096, 0)
	const calls = 5
	for range calls {
		p.from.write("x", "src", m.Remote, pages*4096)
		if r := p.from.wait("x"); r.Code != 0 {
			t.Fatal(r.Text)
		}
		p.to.must(order{Op: "advise", ID: "dst", Advice: unix.MADV_DONTNEED})
		p.from.must(order{Op: "advise", ID: "src", Advice: unix.MADV_DONTNEED})
	}
	// A fault reports the count at that time, and the last call may continue before it is
	// counted. Memory that was never present faults each time.
	told := 0
	w.until("the process sees its calls", func() bool {
		told++
		fresh := p.to.buffer(fmt.Sprintf("fresh %d", told), "anonymous", 4096, 0)
		p.from.write("x", "src", fresh.Remote, 4096)
		if r := p.from.wait("x"); r.Code != 0 {
			t.Fatal(r.Text)
		}
		return p.to.must(order{Op: "stats"}).Stats.NumInvalidations == calls
	})
	if n := p.from.must(order{Op: "stats"}).Stats.NumInvalidations; n != 0 {
		t.Errorf("a process that did not request calls sees %d", n)
	}
	for node, want := range []uint64{0, calls} {
		if n := w.count(node, control.CounterInvalidations); n != want {
			t.Errorf("node %d counts %d calls, want %d", node, n, want)
		}
		list, err := w.Domains(t.Context(), node)
		if err != nil || len(list) != 1 || list[0].Invalidations != want {
			t.Errorf("domains of node %d: %+v, %v: want %d calls", node, list, err, want)
		}
	}
	p.kill()
	w.until("the attachments have ended", func() bool {
		list, err := w.Domains(t.Context(), control.AllNodes)
		return err == nil && len(list) == 0
	})
	if n := w.count(1, control.CounterInvalidations); n != calls {
		t.Errorf("node 1 counts %d calls after their process has ended, want %d", n, calls)
	}
}
