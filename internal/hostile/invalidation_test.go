package hostile

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/rdma"
)

// ODP's num_invalidation_pages, as far as it can be seen: each page that was there
// at one access and is gone at the next counts once, and no other page does.
func TestInvalidationsAreCounted(t *testing.T) {
	const pages = 64
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			w := start(t)
			// One page a fault: what else a policy brings in may be there again before
			// an access finds it gone.
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
					p.to.must(order{Op: "check", ID: "dst"}) // the zero page: a fault, and nobody took it from the device
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
					seen[node] = w.count(node, control.CounterInvalidations)
					n := seen[node] - old
					if c.name == "a target that is unmapped" && node == 1 {
						// Each block ends at its first page that is not there.
						if n == 0 || n > pages {
							t.Errorf("%s: node %d counts %d", c.name, node, n)
						}
					} else if n != c.want[node] {
						t.Errorf("%s: node %d counts %d invalidated pages, want %d", c.name, node, n, c.want[node])
					}
				}
			}
			// Each process is told what is its own, whoever pages in.
			for node, q := range []*proxy{p.from, p.to} {
				var s rdma.Stats
				// A transfer fails with its first block, and faults of the others follow.
				w.until("the process is told of the pages that its node counts", func() bool {
					s, seen[node] = q.must(order{Op: "stats"}).Stats, w.count(node, control.CounterInvalidations)
					return s.NumInvalidationPages == seen[node]
				})
				least := [2]uint64{3, pages + 10 + pages}[node]
				if s.NumPageFaults < least && method != "touch" || s.NumPageFaults == 0 || // touch: a message may ask for several
					s.NumPageFaultPages < least {
					t.Errorf("the process of node %d is told %+v; want %d faults at least", node, s, least)
				}
				if failed := s.NumFailedResolutions > 0; failed != (node == 1) {
					t.Errorf("the process of node %d is told of %d failed resolutions", node, s.NumFailedResolutions)
				}
			}
		})
	}
}
