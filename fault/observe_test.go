package fault_test

import (
	"testing"

	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
)

// Observe gets each record once, when its outcome is final.
func TestObserve(t *testing.T) {
	var seen []fault.Record
	r := newRig(t, func(_ *faulttest.Node, c *fault.Config) {
		c.Observe = func(rec *fault.Record) { seen = append(seen, *rec) }
	})
	r.gup(1, fault.PIO)
	r.touch(2, fault.PIO)
	r.n.Push(entry(1, 1, 1, 0x10), 4096)
	r.n.Push(entry(2, 2, 1, 0x20), 4096)
	r.n.Push(entry(1, 3, 1, 1<<37), 4096) // behind the pager's limit
	r.run()
	want := map[uint64]fault.Outcome{0x10: fault.Resolved, 0x20: fault.Delegated, 1 << 37: fault.Failed}
	if len(seen) != len(want) {
		t.Fatalf("%d records seen, want %d", len(seen), len(want))
	}
	for _, rec := range seen {
		if o, ok := want[uint64(rec.Page)>>12]; !ok || rec.Outcome != o || rec.Answered == 0 {
			t.Errorf("seen %+v, want outcome %v, answered", rec, o)
		}
	}
	r.d.Remove(1)
	r.d.Remove(2)
	r.run()
	if len(seen) != len(want) {
		t.Errorf("%d records seen after the domains went, want no more", len(seen)-len(want))
	}
}
