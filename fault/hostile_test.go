package fault_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/gup"
)

func TestHostileEntries(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIA)
	a := r.touch(1, fault.PIA)
	bad := entry(0, 1, 1, 1<<36) // 48 bits are 2^36 pages
	r.n.Push(bad, 4096)
	bad.Transaction, bad.Page = 2, 1<<39-1
	r.n.Push(bad, 0xffffffff)
	// Any process index: the domain has one process.
	bad.Transaction, bad.Page, bad.Process = 3, 5, 1
	r.n.Push(bad, 4096)
	bad.Transaction, bad.Page, bad.Process = 8, 9, 15
	r.n.Push(bad, 4096)
	bad = entry(1, 4, 1, 1<<36)
	r.n.Push(bad, 4096)
	unknown := entry(0, 5, 1, 5)
	unknown.PDID = 0xffff
	r.n.Push(unknown, 4096)
	unknown.PDID = 0
	r.n.Push(unknown, 4096)
	w := entry(0, 6, 1, 5).Words()
	for i := range w {
		torn := w
		torn[i] &^= 1
		r.n.PushWords(torn, 4096)
	}
	r.n.Push(entry(0, 7, 1, 6), 4096)
	r.run()
	// An address that is not the domain's is ended by the fail bit; a fault of an unknown domain
	// has no packetizer for an answer.
	r.wantSent(rapf{0, 7, 1, 1, true}, rapf{0, 7, 2, 1, true}, rapf{0, 7, 3, 1, false},
		rapf{1, 7, 4, 1, true}, rapf{0, 7, 7, 1, false}, rapf{0, 7, 8, 1, false})
	g.want(t, pageIn{5, 2, true}, pageIn{9, 1, true})
	if len(a.asked) != 0 {
		t.Errorf("asked %+v", a.asked)
	}
	if s := r.d.Stats(); s.BadPage != 3 || s.UnknownPDID != 2 || s.Invalid != 4 {
		t.Errorf("bad page %d, unknown PDID %d, invalid %d; want 3, 2, 4", s.BadPage, s.UnknownPDID, s.Invalid)
	}
}

// A valid and an invalid page of the same block: one RAPF, with the fail bit, when the valid page
// is resident.
func TestBadAndGoodPage(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.n.Push(entry(0, 1, 1, 1<<36), 4096)
	r.n.Push(entry(0, 1, 1, 5), 4096)
	r.run()
	r.wantSent(rapf{0, 7, 1, 1, true})
}

// A former owner has read half of the head.
func TestHalfReadHead(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.n.Push(entry(0, 1, 1, 5), 4096)
	r.n.Push(entry(0, 2, 1, 6), 4096)
	if _, err := r.n.Window(device.PL).Read64(device.PLRXFIFO); err != nil {
		t.Fatal(err)
	}
	r.run()
	r.wantSent(rapf{0, 7, 1, 1, false}, rapf{0, 7, 2, 1, false})
}

func TestPacketizerRefuses(t *testing.T) {
	registersOnly(t)
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.gup(1, fault.PIO)
	r.n.Refuse[0] = 1
	r.n.Push(entry(0, 1, 1, 5), 4096)
	r.n.Push(entry(1, 2, 1, 5), 4096)
	r.run()
	r.wantSent(rapf{1, 7, 2, 1, false})
	if s := r.d.Stats(); s.Slots[0].Refused != 1 || s.Slots[0].RAPF != 0 || s.Slots[1].RAPF != 1 {
		t.Errorf("counters %+v", s.Total)
	}
	if rec := r.d.Records(2)[0]; rec.Outcome != fault.Unsent || rec.Answered != 0 {
		t.Errorf("record %+v, want unsent", rec)
	}
	// The guard retransmits the block.
	r.n.Push(entry(0, 1, 2, 5), 4096)
	r.run()
	r.wantSent(rapf{0, 7, 1, 2, false})
}

func TestPacketizerBusy(t *testing.T) {
	registersOnly(t)
	send := func(looks int) (*rig, fault.Counts) {
		r := newRig(t, nil)
		r.gup(0, fault.PIO)
		r.n.Busy[0] = looks
		for tr := range device.TransactionID(6) {
			r.n.Push(entry(0, tr, 1, 5), 4096)
		}
		r.run()
		return r, r.d.Stats().Slots[0]
	}
	// Four channels hold a message each; the fifth waits.
	r, s := send(12)
	if got := r.sent(); len(got) != 6 || s.RAPF != 6 || s.Busy != 0 {
		t.Errorf("sent %+v, RAPFs %d, abandoned %d; want all six", got, s.RAPF, s.Busy)
	}
	r, s = send(1 << 30)
	if got := r.sent(); len(got) != 4 || s.RAPF != 4 || s.Busy != 2 {
		t.Errorf("sent %+v, RAPFs %d, abandoned %d; want 4, 4, 2", got, s.RAPF, s.Busy)
	}
}

// The block faults on another page while its RAPF waits for the packetizer: the RAPF is sent
// once, when that page is resident.
func TestBusyAndFaultAgain(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.n.Busy[0] = 1 << 30
	for tr := range device.TransactionID(5) {
		r.n.Push(entry(0, tr, 1, 5), 4096)
	}
	for len(r.n.Sent) < 4 {
		r.n.Step()
	}
	waiting := device.TransactionID(0 + 1 + 2 + 3 + 4)
	for _, m := range r.sent() {
		waiting -= m.tr
	}
	r.n.Hold = true
	r.n.Push(entry(0, waiting, 2, 6), 4096)
	for len(r.n.Held) == 0 {
		r.n.Step()
	}
	r.n.Busy[0] = 1
	r.run()
	if got := r.sent(); slices.ContainsFunc(got, func(m rapf) bool { return m.tr == waiting }) {
		t.Errorf("sent %+v while a page of the block is absent", got)
	}
	r.n.Release()
	r.run()
	count := 0
	for _, m := range r.sent() {
		if m.tr == waiting {
			count++
			if m.seq != 2 {
				t.Errorf("RAPF for sequence number %d, want 2", m.seq)
			}
		}
	}
	if count != 1 {
		t.Errorf("%d RAPFs for the block, want 1", count)
	}
}

// A flood from one domain leaves the owning goroutine to others between rounds, and overflow is
// counted and cleared.
func TestFloodAndOverflow(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.gup(1, fault.PIO)
	for i := range 600 {
		r.n.Push(entry(0, device.TransactionID(i), 1, uint64(2*i)), 4096)
	}
	e := entry(1, 3, 1, 5)
	e.Source = ownNode
	r.n.PushTX(e, 4096)
	rounds, other, before := 0, 0, 0
	var others func()
	others = func() {
		other++
		rx, _ := r.n.Levels()
		if before-rx > 64 {
			t.Errorf("%d entries drained without a break for others", before-rx)
		}
		before = rx
		if rx > 0 {
			rounds++
			r.n.Post(others)
		}
	}
	before, _ = r.n.Levels()
	r.n.Post(others)
	r.run()
	if rounds < 8 {
		t.Errorf("others ran %d times while the FIFO was drained, want 8 or more", rounds)
	}
	s := r.d.Stats()
	if s.Overflows != 1 || s.Slots[0].RAPF != 512 || s.Slots[1].RAPF != 1 {
		t.Errorf("overflows %d, RAPFs %d and %d; want 1, 512, 1", s.Overflows, s.Slots[0].RAPF, s.Slots[1].RAPF)
	}
	st, err := r.n.Window(device.PL).Read32(device.PLRXFIFOStatus)
	if err != nil || st&device.FIFOOverflow != 0 {
		t.Errorf("RXFIFO_STATUS %#x, %v; want overflow cleared", st, err)
	}
	// The source fault did not wait behind the flood: it was in the first round.
	if rec := r.d.Records(-1); !slices.ContainsFunc(rec[:65], func(r fault.Record) bool { return r.Slot == 1 }) {
		t.Error("the other FIFO's entry waited for the flood")
	}
}

// A target whose page-ins hang affects only its own domain: its tables fill up to their limit,
// and others are served.
func TestStuckDomain(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIA)
	r.n.Hold = true
	pages := uint64(0)
	for i := range 3000 {
		e := entry(0, device.TransactionID(i%1024), 1, pages)
		e.Source = device.NodeID(i / 1024)
		r.n.Push(e, 64*4096)
		pages += 100
		if i%200 == 0 {
			r.run()
		}
	}
	r.run()
	// One for new faults and one for what the policy adds, however many there are.
	if len(r.n.Held) != 2 {
		t.Fatalf("%d calls in flight, want 2", len(r.n.Held))
	}
	s := r.d.Stats().Slots[0]
	if s.Dropped == 0 || s.Entries != s.Dropped+1024 {
		t.Errorf("entries %d, dropped %d; want 1024 kept", s.Entries, s.Dropped)
	}
	stuck := r.n.Held
	r.n.Held, r.n.Hold = nil, false
	r.gup(1, fault.PIO)
	r.n.Push(entry(1, 1, 1, 5), 4096)
	r.run()
	r.wantSent(rapf{1, 7, 1, 1, false})
	// When the page-in ends after all, every kept block is answered.
	for _, c := range stuck {
		c.Call.Run()
		c.Call.Done()
	}
	r.run()
	if got := r.sent(); len(got) != 1024 {
		t.Errorf("%d RAPFs, want 1024", len(got))
	}
}

func TestRemovedInBetween(t *testing.T) {
	registersOnly(t)
	for _, where := range []string{"call under way", "call queued", "in the FIFO", "added anew"} {
		t.Run(where, func(t *testing.T) {
			r := newRig(t, nil)
			old := r.gup(0, fault.PIA)
			r.gup(1, fault.PIO)
			r.n.Hold = true
			r.n.Push(entry(0, 1, 1, 5), 64*4096)
			r.n.Push(entry(1, 2, 1, 5), 4096)
			if where != "in the FIFO" {
				r.run()
			}
			if where == "call queued" {
				r.n.ReleaseAt(1) // after the long call of the same slot
				r.wantSent(rapf{0, 7, 1, 1, false})
				r.n.Push(entry(0, 1, 2, 30), 4096)
				r.run()
			}
			r.d.Remove(0)
			r.d.Remove(0)
			r.d.Remove(-1)
			r.d.Remove(16)
			var fresh *pager
			if where == "added anew" {
				fresh = r.gup(0, fault.PIO)
				r.n.Push(entry(0, 1, 1, 9), 4096)
				r.run()
			}
			calls := len(old.calls)
			for len(r.n.Held) > 0 {
				r.n.Release()
			}
			r.run()
			for len(r.n.Held) > 0 {
				r.n.Release()
			}
			want := []rapf{{1, 7, 2, 1, false}}
			if fresh != nil {
				want = []rapf{{0, 7, 1, 1, false}, {1, 7, 2, 1, false}}
				fresh.want(t, pageIn{9, 1, true})
			}
			r.wantSent(want...)
			if len(old.calls) > calls+2 { // those in flight run to their end
				t.Errorf("%d page-ins for a domain that was removed", len(old.calls)-calls)
			}
			for _, rec := range r.d.Records(-1) {
				if rec.Outcome == fault.Pending {
					t.Errorf("record %+v stays pending", rec)
				}
			}
		})
	}
}

// The firmware limits a page that faults for ever; the driver answers once each time and keeps
// nothing.
func TestFaultsForEver(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	for i := range 3000 {
		seq := device.Sequence(i) & device.SequenceMask
		r.n.Fault(0, 0x5000, true)
		r.n.Push(entry(0, 1, seq, 5), 4096)
		r.run()
		r.wantSent(rapf{0, 7, 1, seq, false})
	}
}

// The packetizer is busy when the domain is removed: no RAPF is sent for it later.
func TestRemovedWhileBusy(t *testing.T) {
	registersOnly(t)
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.n.Busy[0] = 1 << 30
	for tr := range device.TransactionID(5) {
		r.n.Push(entry(0, tr, 1, 5), 4096)
	}
	for len(r.n.Sent) < 4 {
		r.n.Step()
	}
	r.sent()
	r.d.Remove(0)
	r.n.Busy[0] = 0
	r.gup(0, fault.PIO)
	r.run()
	r.wantSent()
	removed := 0
	for _, rec := range r.d.Records(-1) {
		if rec.Outcome == fault.Removed {
			removed++
		}
	}
	if removed != 1 {
		t.Errorf("%d records say removed, want 1", removed)
	}
}

func TestAddRefuses(t *testing.T) {
	a := &delegate{}
	for _, tt := range []fault.Target{
		{Slot: -1, PDID: 1},
		{Slot: 16, PDID: 1},
		{Slot: 0, PDID: 0},
		{Slot: 0, PDID: 1, Policy: fault.Adaptive + 1},
		{Slot: 0, PDID: 1, Method: fault.Populate + 1, Delegate: a},
		{Slot: 0, PDID: 1, Method: fault.Touch},
	} {
		r := newRig(t, nil)
		if err := r.d.Add(tt); !errors.Is(err, fault.ErrTarget) {
			t.Errorf("Add(%+v) returned %v, want ErrTarget", tt, err)
		}
	}
}

// Whatever arrives in whatever order: a block of a live domain is answered after its last entry,
// with its last sequence number, and not more often than it had entries.
func TestRandom(t *testing.T) {
	type key struct {
		slot int
		tx   bool
		tr   device.TransactionID
	}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t, nil)
		pagers := make([]*pager, 4)
		for n := range pagers {
			pagers[n] = r.gup(n, fault.PIO+fault.Policy(rnd.IntN(3)))
			pagers[n].quiet = true
			pagers[n].limit = 200 + uint64(rnd.IntN(100))
			pagers[n].holes = map[uint64]error{uint64(rnd.IntN(200)): gup.ErrUnmapped, uint64(rnd.IntN(200)): gup.ErrDenied}
		}
		type state struct {
			entries, answers int
			seq              device.Sequence
			open             bool
		}
		blocks := map[key]*state{}
		check := func() {
			for _, m := range r.n.Sent {
				tx := m.Node == ownNode
				for _, w := range r.sent1(m) {
					b := blocks[key{w.iface, tx, w.tr}]
					if b == nil {
						t.Fatalf("seed %d: RAPF for a block never seen: %+v", seed, w)
					}
					b.answers++
					if b.answers > b.entries {
						t.Fatalf("seed %d: %d RAPFs for %d entries of %+v", seed, b.answers, b.entries, w)
					}
					if w.seq == b.seq {
						b.open = false
					}
				}
			}
			r.n.Sent = r.n.Sent[:0]
		}
		r.n.Hold = true
		seqs := map[key]device.Sequence{}
		for range 400 {
			switch k := rnd.IntN(10); {
			case k < 5:
				id := key{rnd.IntN(4), rnd.IntN(4) == 0, device.TransactionID(rnd.IntN(12))}
				if rx, tx := r.n.Levels(); rx == device.FIFODepth || tx == device.FIFODepth {
					break
				}
				b := blocks[id]
				if b == nil {
					b = &state{}
					blocks[id] = b
				}
				if rnd.IntN(2) == 0 {
					seqs[id]++
				}
				b.seq, b.open = seqs[id], true
				b.entries++
				e := entry(id.slot, id.tr, b.seq, uint64(rnd.IntN(320)))
				ext := uint32(rnd.IntN(100 * 4096))
				if id.tx {
					e.Source = ownNode
					r.n.PushTX(e, ext)
				} else {
					r.n.Push(e, ext)
				}
			case k < 7:
				r.n.Step()
				check()
			default:
				r.n.Release()
				check()
			}
		}
		for r.n.Step() || len(r.n.Held) > 0 {
			if len(r.n.Held) > 2*4 {
				t.Fatalf("seed %d: %d calls in flight for four slots", seed, len(r.n.Held))
			}
			r.n.Release()
			check()
		}
		check()
		for id, b := range blocks {
			if b.open {
				t.Fatalf("seed %d: block %+v has no answer", seed, id)
			}
		}
	}
}

// sent1 decodes one message.
func (r *rig) sent1(m faulttest.Message) []rapf {
	keep := r.n.Sent
	r.n.Sent = []faulttest.Message{m}
	out := r.decoded()
	r.n.Sent = keep
	return out
}
