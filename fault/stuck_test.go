package fault_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
)

// release runs the held call for a page, and only that one.
func (r *rig) release(g *pager, page uint64) {
	r.t.Helper()
	for k := range r.n.Held {
		before := len(g.calls)
		held := r.n.Held[k]
		held.Call.Run()
		if c := g.calls[before]; c.page <= page && page < c.page+uint64(c.pages) {
			r.n.Held = append(r.n.Held[:k], r.n.Held[k+1:]...)
			held.Call.Done()
			return
		}
	}
	r.t.Fatalf("no call for page %d is in flight", page)
}

// A page that is never paged in affects only its own block: the domain's other absent pages are
// still paged in, whichever blocks need them, and the page is not requested again.
func TestStuckPage(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	r.n.Hold = true
	r.n.Push(entry(0, 1, 1, 5), 4096)
	r.run()
	r.n.Push(entry(0, 2, 1, 9), 4096) // waits for the first call, which may be quick
	r.run()
	if len(r.n.Held) != 1 {
		t.Fatalf("%d calls in flight, want 1", len(r.n.Held))
	}
	r.time += int64(time.Second)
	r.n.Push(entry(0, 1, 2, 5), 4096) // the guard retransmits the first block
	r.run()
	r.release(g, 9)
	r.run()
	r.wantSent(rapf{0, 7, 2, 1, false})
	for i := range device.TransactionID(20) {
		r.n.Push(entry(0, 10+i, 1, 100+uint64(i)), 4096)
		r.run()
		r.release(g, 100+uint64(i))
		r.run()
		r.wantSent(rapf{0, 7, 10 + i, 1, false})
	}
	if len(r.n.Held) != 1 || r.d.Stats().Total.Stuck != 1 {
		t.Errorf("%d calls in flight, %d stuck, want the first", len(r.n.Held), r.d.Stats().Total.Stuck)
	}
	r.release(g, 5)
	r.run()
	r.wantSent(rapf{0, 7, 1, 2, false})
}

// If a range hangs somewhere, each needed page is requested by itself.
func TestStuckRange(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PI4)
	r.n.Hold = true
	for page := range uint64(4) {
		r.n.Push(entry(0, 1+device.TransactionID(page), 1, page), uint32(4-page)*4096)
	}
	r.run()
	r.time += int64(time.Second)
	r.n.Push(entry(0, 9, 1, 1000), 4096)
	r.run()
	for _, page := range []uint64{1000, 0} {
		r.release(g, page) // for page 0 the call for all four, or the one for it alone
		r.run()
	}
	if n := len(r.sent()); n < 2 {
		t.Errorf("%d blocks answered", n)
	}
}

// Domains have a limited number of stuck calls.
func TestStuckBound(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.n.Hold = true
	for i := range uint64(100) {
		r.n.Push(entry(0, device.TransactionID(i), 1, 10*i), 4096)
		r.run()
		r.time += int64(time.Second)
	}
	if n := len(r.n.Held); n != 8 {
		t.Errorf("%d calls in flight, want 8", n)
	}
	for len(r.n.Held) > 0 {
		r.n.Release()
	}
	r.n.Hold = false
	r.run()
	if n := len(r.sent()); n != 100 {
		t.Errorf("%d blocks answered, want 100", n)
	}
}

// A page that fails in the same way for long fails its block, with the cause in the record; a
// different failure in between restarts the count.
func TestNeverComes(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	g.fail = gup.ErrNotResident
	seq := device.Sequence(0)
	try := func(after time.Duration) {
		seq++
		r.time += int64(after)
		r.n.Push(entry(0, 1, seq, 5), 4096)
		r.run()
	}
	try(0)
	try(100 * time.Millisecond)
	g.fail = errBusy
	try(2 * time.Second)
	g.fail = gup.ErrNotResident
	try(0)
	try(900 * time.Millisecond)
	r.wantSent()
	try(200 * time.Millisecond)
	r.wantSent(rapf{0, 7, 1, seq, true})
	recs := r.d.Records(1)
	if recs[0].Outcome != fault.Failed || !errors.Is(recs[0].Cause, gup.ErrNotResident) {
		t.Errorf("%v: %v", recs[0].Outcome, recs[0].Cause)
	}
	// An old failure does not count.
	try(time.Minute)
	r.wantSent()
	if rec := r.d.Records(1)[0]; rec.Outcome != fault.Unsent || !errors.Is(rec.Cause, gup.ErrNotResident) {
		t.Errorf("%v: %v", rec.Outcome, rec.Cause)
	}
}

// A page that is resident and faults nevertheless is failed before the sender's limit of requests
// ends the transfer without a reason.
func TestThereInVain(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	g.there = true
	for seq := device.Sequence(1); ; seq++ {
		r.n.Push(entry(0, 1, seq, 5), 4096)
		r.run()
		sent := r.sent()
		if len(sent) != 1 || seq > 1000 {
			t.Fatalf("%v at sequence number %d", sent, seq)
		}
		if sent[0].fail {
			break
		}
	}
	if rec := r.d.Records(1)[0]; rec.Outcome != fault.Failed || !errors.Is(rec.Cause, fault.ErrInaccessible) {
		t.Errorf("%v: %v", rec.Outcome, rec.Cause)
	}
}

// A page that its process drops and touches all the time is found resident for many blocks, each
// of which makes progress: that says nothing about its bytes. A block that makes no progress is
// still detected among them.
func TestThereForOthers(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	g.there = true
	faults := func(id device.TransactionID, seq device.Sequence) bool {
		r.n.Push(entry(0, id, seq, 5), 4096)
		r.run()
		sent := r.sent()
		if len(sent) != 1 {
			t.Fatalf("%v for transaction %d", sent, id)
		}
		return sent[0].fail
	}
	for id := range device.TransactionID(1000) {
		if faults(id, 1) {
			t.Fatalf("transaction %d fails at its first fault", id)
		}
	}
	for seq := device.Sequence(2); !faults(1, seq); seq++ {
		if faults(2+device.TransactionID(seq)%500, seq) {
			t.Fatal("another transaction fails")
		}
		if seq > 1000 {
			t.Fatal("a block that never makes progress is not detected")
		}
	}
}

// remapper is a pager of a device that uses page tables of pfd.
type remapper struct {
	*pager
	again []uint64 // pages

}

func (p *remapper) Again(va device.VA, write bool) gup.Result {
	p.again = append(p.again, uint64(va>>device.PageShift))
	return p.PageIn(va, 1, write)
}

// TestMappedAgain: a page that is mapped but refused nevertheless is mapped once more, and then
// the transfer ends.
func TestMappedAgain(t *testing.T) {
	r := newRig(t, nil)
	g := &remapper{pager: &pager{limit: 1 << 36, there: true}}
	r.n.Pagers[0] = g
	r.add(fault.Target{Slot: 0, Policy: fault.PI4, Method: fault.GUP})
	for seq := device.Sequence(1); ; seq++ {
		r.n.Push(entry(0, 1, seq, 5), 4096)
		r.run()
		sent := r.sent()
		if len(sent) != 1 || seq > 1000 {
			t.Fatalf("%v at sequence number %d", sent, seq)
		}
		if sent[0].fail {
			break
		}
	}
	if !slices.Equal(g.again, []uint64{5}) {
		t.Errorf("mapped again: pages %d, want 5 once", g.again)
	}
	if rec := r.d.Records(1)[0]; rec.Outcome != fault.Failed || !errors.Is(rec.Cause, fault.ErrInaccessible) {
		t.Errorf("%v: %v", rec.Outcome, rec.Cause)
	}
}

// TestUnmappable: a page that cannot be mapped for the device ends the transfer at once.
func TestUnmappable(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	g.fail = fmt.Errorf("%w: no more may be locked", gup.ErrUnmappable)
	r.n.Push(entry(0, 1, 7, 5), 4096)
	r.run()
	r.wantSent(rapf{0, 7, 1, 7, true})
	if rec := r.d.Records(1)[0]; rec.Outcome != fault.Failed || !errors.Is(rec.Cause, gup.ErrUnmappable) {
		t.Errorf("%v: %v", rec.Outcome, rec.Cause)
	}
}

// TestFailureOfFormerMapping: a page-in in flight when a block arrives may have seen an earlier
// mapping, as after an abort, munmap and mmap. Its failure ends the blocks that arrived before it
// began; for the others the page is requested again.
func TestFailureOfFormerMapping(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail error
	}{{"not mapped", gup.ErrUnmapped}, {"denied", gup.ErrDenied}, {"past the file's end", gup.ErrPastEnd}, {"gone", gup.ErrGone},
		{"not shared", gup.ErrNotShared}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			g := r.gup(0, fault.PIO)
			g.fail = tt.fail
			r.n.Hold = true
			r.n.Push(entry(0, 1, 1, 5), 4096)
			r.n.Push(entry(0, 2, 8, 5), 4096)
			r.run()
			// One with its own ID, and one that takes over the ID of an ended transfer.
			r.n.Push(entry(0, 3, 1, 5), 4096)
			r.n.Push(entry(0, 2, 9, 5), 4096)
			r.run()
			r.n.Release()
			g.fail = nil
			r.run()
			r.wantSent(rapf{0, 7, 1, 1, true})
			if len(r.n.Held) != 1 {
				t.Fatalf("%d calls in flight, want one more", len(r.n.Held))
			}
			r.n.Release()
			r.run()
			r.wantSent(rapf{0, 7, 2, 9, false}, rapf{0, 7, 3, 1, false})
			g.want(t, pageIn{5, 1, true}, pageIn{5, 1, true})
			if n := r.d.Stats().Total.Unresolvable; n != 1 {
				t.Errorf("%d faults count as unresolvable, want 1", n)
			}
		})
	}
}

// TestNoFilePageTakesASecond: a page of a file of unknown length fails like others that the
// kernel does not make resident, after one second.
func TestNoFilePageTakesASecond(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	g.fail = gup.ErrNoFilePage
	try := func(seq device.Sequence) {
		r.n.Push(entry(0, 1, seq, 5), 4096)
		r.run()
	}
	try(1)
	r.wantSent() // the file's length is unknown: the failure may be temporary
	g.fail = nil
	try(2)
	r.wantSent(rapf{0, 7, 1, 2, false})
	g.fail = gup.ErrNoFilePage
	try(3)
	r.wantSent()
	r.time += int64(time.Second)
	try(4)
	r.wantSent(rapf{0, 7, 1, 4, true})
}
