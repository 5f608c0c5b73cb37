package fault_test

import (
	"testing"

	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
)

// ObservePageIn is called with each page-in, and one record of each answered block counts its
// answer: their sums equal the driver's counters.
func TestObservePageIn(t *testing.T) {
	var calls, pages, answers int
	r := newRig(t, func(_ *faulttest.Node, c *fault.Config) {
		c.ObservePageIn = func(p *fault.PageIn) {
			if p.PDID == 0 || p.Started == 0 || p.Ended < p.Started || p.Pages < 1 {
				t.Errorf("%+v", p)
			}
			if p.Got > 0 {
				calls++
			}
			pages += p.New
		}
		c.Observe = func(rec *fault.Record) {
			if rec.Answers {
				answers++
			}
		}
	})
	r.gup(1, fault.PIO)
	r.n.Push(entry(1, 1, 1, 0x10), 8192)
	r.n.Push(entry(1, 1, 1, 0x12), 4096) // another page of the same block
	r.n.Push(entry(1, 2, 1, 0x20), 4096)
	r.n.Push(entry(1, 3, 1, 1<<37), 4096) // beyond the pager's limit
	r.run()
	total := r.d.Stats().Total
	if uint64(calls) != total.PageIns || uint64(pages) != total.Pages || calls == 0 {
		t.Errorf("%d calls and %d pages seen, the driver counts %d and %d", calls, pages, total.PageIns, total.Pages)
	}
	if uint64(answers) != total.RAPF+total.RAPFFail || answers != 3 {
		t.Errorf("%d answers seen, the driver counts %d and %d", answers, total.RAPF, total.RAPFFail)
	}
}
