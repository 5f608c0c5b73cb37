package fault_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

func TestTouch(t *testing.T) {
	ask := func(tr device.TransactionID, page uint64, pages uint16) netlink.Fault {
		return netlink.Fault{Source: 7, Transaction: tr, Sequence: 3, VA: device.VA(page << 12), PDID: pdidOf(2), Write: true, Pages: pages}
	}
	read := func(f netlink.Fault) netlink.Fault {
		f.Source, f.Write = ownNode, false
		return f
	}
	tests := []struct {
		name   string
		policy fault.Policy
		pushes []push
		want   []netlink.Fault
	}{
		{"one page", fault.PIO, []push{{1, 5, 4096, false}}, []netlink.Fault{ask(1, 5, 1)}},
		{"a block's four pages", fault.PIO, []push{{1, 6, 4096, false}, {1, 5, 4096, false}, {1, 7, 4096, false}, {1, 4, 4096, false}}, []netlink.Fault{ask(1, 4, 4)}},
		{"every second page", fault.PIO, []push{{1, 4, 4096, false}, {1, 6, 4096, false}}, []netlink.Fault{ask(1, 4, 3)}},
		{"duplicates", fault.PIO, []push{{1, 4, 4096, false}, {1, 4, 4096, false}}, []netlink.Fault{ask(1, 4, 1)}},
		{"two transactions", fault.PIO, []push{{1, 5, 4096, false}, {2, 5, 4096, false}}, []netlink.Fault{ask(1, 5, 1), ask(2, 5, 1)}},
		{"PI4", fault.PI4, []push{{1, 5, 1 << 20, false}}, []netlink.Fault{ask(1, 5, 3)}},
		{"PIA", fault.PIA, []push{{1, 5, 40 * kib, false}}, []netlink.Fault{ask(1, 5, 10)}},
		{"PIA: only the first asks for the rest", fault.PIA,
			[]push{{1, 4, 256 * kib, false}, {1, 5, 252 * kib, false}, {2, 8, 240 * kib, false}, {3, 12, 224 * kib, false}},
			[]netlink.Fault{ask(1, 4, 64), ask(2, 8, 1), ask(3, 12, 1)}},
		{"the notification is far away", fault.PIO, []push{{1, 4, 4096, false}, {1, 900, 16, false}}, []netlink.Fault{ask(1, 4, 1), ask(1, 900, 1)}},
		{"source", fault.PI4, []push{{1, 5, 1 << 20, true}}, []netlink.Fault{read(ask(1, 5, 4))}},
		{"16 MiB at most", fault.PIA, []push{{1, 5, 1 << 30, false}}, []netlink.Fault{ask(1, 5, 4096)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			a := r.touch(2, tt.policy)
			for _, p := range tt.pushes {
				e := entry(2, p.tr, 3, p.page)
				if p.tx {
					e.Source = ownNode
					r.n.PushTX(e, p.ext)
				} else {
					r.n.Push(e, p.ext)
				}
			}
			r.run()
			if !slices.Equal(a.asked, tt.want) {
				t.Errorf("asked\n got %+v\nwant %+v", a.asked, tt.want)
			}
			// The process sends the RAPF, and pfd pages nothing in.
			r.wantSent()
			if len(r.n.Calls) != 0 {
				t.Errorf("%d page-in calls", len(r.n.Calls))
			}
			for _, rec := range r.d.Records(-1) {
				if rec.Outcome != fault.Delegated || rec.Answered == 0 {
					t.Errorf("record %+v, want delegated", rec)
				}
			}
			for _, f := range a.asked {
				if err := f.Check(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestTouchNewestSequence(t *testing.T) {
	r := newRig(t, nil)
	a := r.touch(0, fault.PIO)
	r.n.Push(entry(0, 1, 1, 9), 4096)
	r.n.Push(entry(0, 1, 2, 8), 4096)
	r.run()
	if len(a.asked) != 1 || a.asked[0].Sequence != 2 || a.asked[0].Pages != 2 {
		t.Errorf("asked %+v, want one of two pages with sequence number 2", a.asked)
	}
}

// A process that does not read costs a counter; the sender's guard recovers.
func TestTouchFull(t *testing.T) {
	tests := []struct {
		err       error
		full, oth uint64
	}{
		{fmt.Errorf("send: %w", netlink.ErrFull), 1, 0},
		{netlink.ErrNoReceiver, 0, 1},
		{errors.New("other"), 0, 1},
	}
	for _, tt := range tests {
		r := newRig(t, nil)
		a := r.touch(0, fault.PIO)
		r.gup(1, fault.PIO)
		a.err = tt.err
		r.n.Push(entry(0, 1, 1, 5), 4096)
		r.n.Push(entry(1, 2, 1, 5), 4096)
		r.run()
		r.wantSent(rapf{1, 7, 2, 1, false})
		s := r.d.Stats().Slots[0]
		if s.DelegateFull != tt.full || s.DelegateErr != tt.oth || s.Delegated != 0 {
			t.Errorf("%v: full %d, other %d, delegated %d", tt.err, s.DelegateFull, s.DelegateErr, s.Delegated)
		}
		a.err = nil
		r.n.Push(entry(0, 1, 2, 5), 4096)
		r.run()
		if len(a.asked) != 1 || a.asked[0].Sequence != 2 {
			t.Errorf("after the guard: asked %+v", a.asked)
		}
	}
}

// A source fault reported only by FAR has no transaction: the fields are 0 (spec/messages.md 3).
func TestTouchByFAR(t *testing.T) {
	r := newRig(t, func(n *faulttest.Node, _ *fault.Config) {
		n.Set64(device.PL, device.PLCaps, faulttest.Caps&^device.CapsTXFIFO)
	})
	a := r.touch(0, fault.PI4)
	r.n.Fault(0, 0x5678, false)
	r.run()
	want := []netlink.Fault{{VA: 0x5000, Pages: 4}}
	if !slices.Equal(a.asked, want) {
		t.Errorf("asked %+v, want %+v", a.asked, want)
	}
}

// If a process cannot page in, the pager tries: the block ends with its result, and the record
// has the cause.
func TestDeclined(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cause  error // of each page-in
		rounds int   // until the sender gets its answer
		want   mailbox.RAPF
	}{
		{"the page becomes resident", nil, 1, mailbox.RAPF{}},
		{"no mapping", gup.ErrUnmapped, 1, mailbox.RAPF{Fail: true}},
		{"no memory", errBusy, 2, mailbox.RAPF{Fail: true, Memory: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			a, g := &delegate{}, &pager{limit: 1 << 36, fail: tt.cause}
			r.n.Pagers[2] = g
			r.add(fault.Target{Slot: 2, Policy: fault.PIO, Method: fault.Touch, Delegate: a})
			for round := range tt.rounds {
				if len(r.n.Sent) != 0 {
					t.Fatalf("round %d: %d messages", round, len(r.n.Sent))
				}
				seq := device.Sequence(1 + round)
				r.n.Push(entry(2, 5, seq, 40), 4096)
				r.run()
				declined := mailbox.RAPF{Transaction: 5, Sequence: seq, Claimed: pdidOf(2), Fail: true}
				for _, other := range []struct {
					slot   int
					source device.NodeID
					rapf   mailbox.RAPF
				}{
					{1, 7, declined}, {2, 8, declined},
					{2, 7, mailbox.RAPF{Transaction: 6, Sequence: seq, Claimed: pdidOf(2)}},
					{2, 7, mailbox.RAPF{Transaction: 5, Sequence: seq + 1, Claimed: pdidOf(2)}},
					{2, 7, mailbox.RAPF{Transaction: 5, Sequence: seq, Claimed: pdidOf(1)}},
				} {
					if r.d.Declined(other.slot, other.source, other.rapf) {
						t.Errorf("taken: %+v", other)
					}
				}
				if !r.d.Declined(2, 7, declined) || r.d.Declined(2, 7, declined) {
					t.Error("the block must be taken over once")
				}
				r.run()
				r.time += 1e9
			}
			if len(r.n.Sent) != 1 {
				t.Fatalf("%d messages, want one", len(r.n.Sent))
			}
			if got, err := mailbox.DecodeRAPF(r.n.Sent[0].Words[0]); err != nil || got.Fail != tt.want.Fail || got.Memory != tt.want.Memory {
				t.Errorf("answered %+v (%v), want %+v", got, err, tt.want)
			}
			recs := r.d.Records(1)
			if rec := recs[0]; !errors.Is(rec.Cause, tt.cause) || (rec.Outcome == fault.Failed) != tt.want.Fail {
				t.Errorf("record %+v", rec)
			}
		})
	}
}
