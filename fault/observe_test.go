package fault_test

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
)

// Observe is called with each record once, when its outcome is final.
func TestObserve(t *testing.T) {
	var seen []fault.Record
	r := newRig(t, func(_ *faulttest.Node, c *fault.Config) {
		c.Observe = func(rec *fault.Record) { seen = append(seen, *rec) }
	})
	r.gup(1, fault.PIO)
	r.touch(2, fault.PIO)
	r.n.Push(entry(1, 1, 1, 0x10), 4096)
	r.n.Push(entry(2, 2, 1, 0x20), 4096)
	r.n.Push(entry(1, 3, 1, 1<<37), 4096) // beyond the pager's limit
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
		t.Errorf("%d records observed after the domains were removed, want none", len(seen)-len(want))
	}
}

// More faults wait than are remembered: each is observed, or counted as unrecorded.
func TestUnrecorded(t *testing.T) {
	var seen uint64
	r := newRig(t, func(_ *faulttest.Node, c *fault.Config) {
		c.Observe = func(*fault.Record) { seen++ }
	})
	r.gup(1, fault.PIO)
	r.gup(2, fault.PIO)
	r.n.Hold = true
	const each = fault.RecordDepth/2 + 100
	for i := range each {
		for slot := 1; slot <= 2; slot++ {
			r.n.Push(entry(slot, device.TransactionID(i), 1, uint64(16*i)), 4096)
			r.run()
		}
	}
	if s := r.d.Stats(); s.Unrecorded != 2*each-fault.RecordDepth || seen != 0 {
		t.Errorf("%d faults wait, %d are seen, %d not recorded", 2*each, seen, s.Unrecorded)
	}
	r.n.Hold = false
	for len(r.n.Held) > 0 {
		r.n.Release()
		r.run()
	}
	if s := r.d.Stats(); s.Total.RAPF != 2*each || seen+s.Unrecorded != 2*each {
		t.Errorf("%d faults: %d answered, %d seen, %d not recorded", 2*each, s.Total.RAPF, seen, s.Unrecorded)
	}
}
