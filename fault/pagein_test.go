package fault_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/gup"
)

const kib = 1024

// push is one fault of a round: transaction, page, bytes of the transfer from there on.
type push struct {
	tr   device.TransactionID
	page uint64
	ext  uint32
	tx   bool
}

func TestMergeAndPolicies(t *testing.T) {
	const mib = 1024 * kib
	tests := []struct {
		name   string
		policy fault.Policy
		far    device.VA // of a destination fault, exact
		pushes []push
		want   []pageIn
	}{
		{name: "one page", policy: fault.PIO, pushes: []push{{1, 5, mib, false}}, want: []pageIn{{5, 1, true}}},
		{name: "neighbours are one range", policy: fault.PIO,
			pushes: []push{{1, 5, mib, false}, {1, 6, mib, false}, {1, 7, mib, false}}, want: []pageIn{{5, 3, true}}},
		{name: "in any order", policy: fault.PIO,
			pushes: []push{{1, 7, mib, false}, {1, 5, mib, false}, {1, 6, mib, false}}, want: []pageIn{{5, 3, true}}},
		{name: "duplicates", policy: fault.PIO,
			pushes: []push{{1, 5, mib, false}, {1, 5, mib, false}, {2, 5, mib, false}}, want: []pageIn{{5, 1, true}}},
		{name: "a gap", policy: fault.PIO,
			pushes: []push{{1, 5, mib, false}, {1, 7, mib, false}}, want: []pageIn{{5, 1, true}, {7, 1, true}}},
		{name: "write and read apart", policy: fault.PIO,
			pushes: []push{{1, 5, mib, false}, {2, 5, mib, true}}, want: []pageIn{{5, 1, true}, {5, 1, false}}},

		// PI4: to the end of the aligned 16 KiB, four pages.
		{name: "PI4 at the start", policy: fault.PI4, pushes: []push{{1, 8, mib, false}}, want: []pageIn{{8, 4, true}}},
		{name: "PI4 within", policy: fault.PI4, pushes: []push{{1, 9, mib, false}}, want: []pageIn{{9, 3, true}}},
		{name: "PI4 at the last", policy: fault.PI4, pushes: []push{{1, 11, mib, false}}, want: []pageIn{{11, 1, true}}},
		{name: "PI4 at a source: four pages", policy: fault.PI4, pushes: []push{{1, 11, mib, true}}, want: []pageIn{{11, 4, false}}},
		{name: "PI4 of a block's four", policy: fault.PI4,
			pushes: []push{{1, 8, mib, false}, {1, 9, mib, false}, {1, 10, mib, false}, {1, 11, mib, false}}, want: []pageIn{{8, 4, true}}},
		{name: "PI4 clipped by EXT", policy: fault.PI4, pushes: []push{{1, 8, 4097, false}}, want: []pageIn{{8, 2, true}}},
		{name: "PI4 at a source clipped by EXT", policy: fault.PI4, pushes: []push{{1, 11, 2 * 4096, true}}, want: []pageIn{{11, 2, false}}},

		{name: "adaptive, one fault: as PIA", policy: fault.Adaptive, pushes: []push{{1, 9, 40 * kib, false}}, want: []pageIn{{9, 10, true}}},
		{name: "adaptive, two neighbours: four pages more", policy: fault.Adaptive,
			pushes: []push{{1, 5, 4 * kib, false}, {2, 6, 4 * kib, false}}, want: []pageIn{{5, 6, true}}},
		{name: "adaptive, equal distances", policy: fault.Adaptive,
			pushes: []push{{1, 10, 4 * kib, false}, {2, 20, 4 * kib, false}, {3, 30, 4 * kib, false}},
			want:   []pageIn{{10, 1, true}, {20, 1, true}, {30, 1, true}, {40, 1, true}, {50, 1, true}, {60, 1, true}, {70, 1, true}}},
		{name: "PIA by EXT", policy: fault.PIA, pushes: []push{{1, 9, 40 * kib, false}}, want: []pageIn{{9, 10, true}}},
		{name: "PIA one byte", policy: fault.PIA, pushes: []push{{1, 9, 1, false}}, want: []pageIn{{9, 1, true}}},
		{name: "PIA nothing stated", policy: fault.PIA, pushes: []push{{1, 9, 0, false}}, want: []pageIn{{9, 1, true}}},
		{name: "PIA at a source", policy: fault.PIA, pushes: []push{{1, 9, 40 * kib, true}}, want: []pageIn{{9, 10, false}}},
		{name: "PIA ranges joined", policy: fault.PIA,
			pushes: []push{{1, 8, 40 * kib, false}, {2, 12, 24 * kib, false}}, want: []pageIn{{8, 10, true}}},
		{name: "PIA ranges that only touch", policy: fault.PIA,
			pushes: []push{{1, 8, 8 * kib, false}, {2, 10, 4 * kib, false}}, want: []pageIn{{8, 3, true}}},
		// FAR reports where in its page the fault was: 0x9800 + 6 KiB ends in page 10 exactly at
		// 0xb000, and with one byte more in page 11.
		{name: "PIA with FAR", policy: fault.PIA, far: 0x9800, pushes: []push{{1, 9, 6 * kib, false}}, want: []pageIn{{9, 2, true}}},
		{name: "PIA with FAR, a byte more", policy: fault.PIA, far: 0x9800, pushes: []push{{1, 9, 6*kib + 1, false}}, want: []pageIn{{9, 3, true}}},
		{name: "FAR of another page", policy: fault.PIA, far: 0x8800, pushes: []push{{1, 9, 6*kib + 1, false}}, want: []pageIn{{9, 2, true}}},
		{name: "FAR of the other direction", policy: fault.PIA, far: 0x9800, pushes: []push{{1, 9, 6*kib + 1, true}}, want: []pageIn{{9, 2, false}}},
		// The width is 48 bits: page 0xfffffffff is the last.
		{name: "clipped to the address width", policy: fault.PIA, pushes: []push{{1, 0xffffffffe, mib, false}}, want: []pageIn{{0xffffffffe, 2, true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			g := r.gup(2, tt.policy)
			blocks := map[string]rapf{}
			if tt.far != 0 {
				r.n.Fault(2, tt.far, true)
			}
			for _, p := range tt.pushes {
				e := entry(2, p.tr, 3, p.page)
				if p.tx {
					e.Source = ownNode
					r.n.PushTX(e, p.ext)
				} else {
					r.n.Push(e, p.ext)
				}
				blocks[fmt.Sprint(p.tr, p.tx)] = rapf{2, e.Source, p.tr, 3, false}
			}
			r.run()
			g.want(t, tt.want...)
			var want []rapf
			for _, b := range blocks {
				want = append(want, b)
			}
			slices.SortFunc(want, func(a, b rapf) int { return int(a.tr) - int(b.tr) })
			r.wantSent(want...)
		})
	}
}

// While a process pages in by itself, further pages with waiters accumulate and are requested
// together, up to 64 pages; with another method they are paged in one by one.
func TestJoinedQuestions(t *testing.T) {
	for _, tt := range []struct {
		method fault.Method
		want   []pageIn
	}{
		{fault.Populate, []pageIn{{0, 4, true}, {4, 64, true}, {68, 12, true}, {200, 4, true}}},
		{fault.GUP, []pageIn{{0, 4, true}, {8, 4, true}, {4, 4, true}, {12, 4, true}}},
	} {
		r := newRig(t, nil)
		g := &pager{limit: 1 << 36}
		r.n.Pagers[1] = g
		r.add(fault.Target{Slot: 1, Policy: fault.PI4, Method: tt.method})
		var want []rapf
		fault := func(tr device.TransactionID, page uint64) {
			r.n.Push(entry(1, tr, 1, page), 1<<20)
			want = append(want, rapf{1, 7, tr, 1, false})
			r.run()
		}
		r.n.Hold = true
		fault(0, 0)
		fault(1, 8)
		fault(2, 4)
		for i := device.TransactionID(3); i < 20; i++ {
			fault(i, 4*uint64(i))
		}
		fault(20, 200)
		for len(r.n.Held) > 0 {
			r.n.Release()
			r.run()
		}
		if len(g.calls) < len(tt.want) || !slices.Equal(g.calls[:len(tt.want)], tt.want) {
			t.Errorf("%v: page-ins\n got %v\nwant %v", tt.method, g.calls, tt.want)
		}
		r.wantSent(want...)
	}
}

// 16 MiB are 4096 pages, whatever EXT says.
func TestCapOfAFault(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIA)
	r.n.Push(entry(0, 1, 1, 100), 0xffffffff)
	r.run()
	slices.SortFunc(g.calls, func(a, b pageIn) int { return int(a.page) - int(b.page) })
	pages, end := 0, uint64(100)
	for _, c := range g.calls {
		if c.page != end || c.pages > 64 {
			t.Fatalf("page-in %+v after page %d", c, end)
		}
		pages += c.pages
		end += uint64(c.pages)
	}
	if pages != 4096 {
		t.Errorf("%d pages paged in, want 4096", pages)
	}
	r.wantSent(rapf{0, 7, 1, 1, false})
}

func TestSlices(t *testing.T) {
	tests := []struct {
		pages uint32
		want  []int
	}{
		{1, []int{1}},
		{16, []int{16}},
		{17, []int{16, 1}},
		{31, []int{16, 15}},
		{32, []int{16, 16}},
		{33, []int{16, 17}},
		{47, []int{16, 31}},
		{48, []int{16, 16, 16}},
		{96, []int{16, 16, 32, 32}},
		{97, []int{16, 16, 32, 33}},
		{256, []int{16, 16, 32, 64, 64, 64}},
		// 16+16+32, then 70 left: 54, none shorter than 16, but no slice passes the end of 64 aligned pages.
		{134, []int{16, 16, 32, 54, 10, 6}},
	}
	for _, tt := range tests {
		r := newRig(t, nil)
		g := r.gup(0, fault.PIA)
		r.n.Push(entry(0, 1, 1, 0x1000), tt.pages*4096)
		r.run()
		for i, c := range g.calls {
			if long := r.n.Calls[i].Long; long != (c.page != 0x1000) {
				t.Errorf("%d pages: the call at page %#x has long %v", tt.pages, c.page, long)
			}
		}
		slices.SortFunc(g.calls, func(a, b pageIn) int { return int(a.page) - int(b.page) })
		var got []int
		for _, c := range g.calls {
			got = append(got, c.pages)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%d pages: slices %v, want %v", tt.pages, got, tt.want)
		}
	}
}

// A 1 MiB transfer whose window of eight blocks has faulted: the first slice is short, the next
// runs beside it on the other processor, and each lets its blocks flow when it has completed.
func TestDataFlowsBetweenSlices(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIA)
	r.n.Hold = true
	for tr := range device.TransactionID(8) {
		for i := range uint64(4) {
			page := 4*uint64(tr) + i
			r.n.Push(entry(0, tr, 1, page), uint32(256-page)*4096)
		}
	}
	r.run()
	ok := func(tr device.TransactionID) rapf { return rapf{0, 7, tr, 1, false} }
	// The long one is started first, so that its worker wakes meanwhile.
	if n := len(r.n.Held); n != 2 || !r.n.Held[0].Long || r.n.Held[1].Long {
		t.Fatalf("%d calls in flight: %+v; want a long and a short one", n, r.n.Held)
	}
	r.wantSent()
	r.n.ReleaseAt(1)
	g.want(t, pageIn{0, 16, true})
	r.wantSent(ok(0), ok(1), ok(2), ok(3))

	// Blocks wait for pages of the slice in flight and of queued ones; others do not.
	r.n.Push(entry(0, 20, 1, 18), 4096)
	r.n.Push(entry(0, 21, 1, 200), 4096)
	r.n.Push(entry(0, 22, 1, 300), 4096)
	r.run()
	if len(r.n.Held) != 2 {
		t.Fatalf("%d calls in flight, want 2", len(r.n.Held))
	}
	r.n.ReleaseAt(1)
	g.want(t, pageIn{300, 1, true})
	r.wantSent(ok(22))
	r.n.Release()
	g.want(t, pageIn{16, 16, true})
	r.wantSent(ok(4), ok(5), ok(6), ok(7), ok(20))
	for len(r.n.Held) > 0 {
		if len(r.n.Held) != 1 {
			t.Fatalf("%d calls in flight, want 1", len(r.n.Held))
		}
		r.n.Release()
	}
	g.want(t, pageIn{32, 32, true}, pageIn{64, 64, true}, pageIn{128, 64, true}, pageIn{192, 64, true})
	r.wantSent(ok(21))
}

// The pages that a policy adds make progress beside new faults, however many.
func TestRestIsNotStarved(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIA)
	r.n.Hold = true
	r.n.Push(entry(0, 0, 1, 0), 32*4096)
	r.run()
	page := uint64(1000)
	for tr := device.TransactionID(1); tr < 20; tr++ {
		r.n.Push(entry(0, tr, 1, page), 4096)
		page += 2
		r.run()
		r.n.Release()
	}
	if at := slices.Index(g.calls, pageIn{16, 16, true}); at < 0 || at > 5 {
		t.Errorf("the rest came as call %d of %v, want 0 to 5", at, g.calls)
	}
}

func TestBlockAcrossRounds(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	r.n.Hold = true
	r.n.Push(entry(0, 1, 1, 4), 4096)
	r.run()
	r.n.Push(entry(0, 1, 1, 5), 4096)
	r.n.Push(entry(0, 1, 1, 4), 4096)
	r.run()
	r.n.Release()
	r.wantSent() // page 5 is still absent
	r.n.Release()
	r.wantSent(rapf{0, 7, 1, 1, false})
	g.want(t, pageIn{4, 1, true}, pageIn{5, 1, true})
	if s := r.d.Stats().Slots[0]; s.Duplicates != 1 || s.RAPF != 1 || s.Entries != 3 {
		t.Errorf("duplicates %d, RAPFs %d, entries %d; want 1, 1, 3", s.Duplicates, s.RAPF, s.Entries)
	}
}

// The block was retransmitted while its page-in was in flight (by the guard): only the newest
// sequence number's RAPF would be obeyed.
func TestNewestSequence(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.n.Hold = true
	r.n.Push(entry(0, 1, 0x3fff, 4), 4096)
	r.run()
	r.n.Push(entry(0, 1, 0, 4), 4096)
	r.run()
	r.n.Release()
	r.wantSent(rapf{0, 7, 1, 0, false})
}

// Blocks are distinguished by source, transaction and direction.
func TestBlocksApart(t *testing.T) {
	r := newRig(t, nil)
	r.gup(0, fault.PIO)
	r.gup(1, fault.PIO)
	for _, src := range []device.NodeID{1, 2, device.NodeIDMask} {
		e := entry(0, 1, 9, 4)
		e.Source = src
		r.n.Push(e, 4096)
	}
	e := entry(1, 1, 9, 4)
	r.n.Push(e, 4096)
	e = entry(0, 1, 9, 4)
	e.Source = ownNode
	r.n.PushTX(e, 4096)
	r.run()
	got := r.sent()
	slices.SortFunc(got, func(a, b rapf) int { return int(a.iface-b.iface)<<23 + int(a.node) - int(b.node) })
	want := []rapf{{0, 1, 1, 9, false}, {0, 2, 1, 9, false}, {0, ownNode, 1, 9, false}, {0, device.NodeIDMask, 1, 9, false}, {1, 7, 1, 9, false}}
	if !slices.Equal(got, want) {
		t.Errorf("RAPFs\n got %+v\nwant %+v", got, want)
	}
}

func TestUnresolvable(t *testing.T) {
	for _, why := range []error{gup.ErrUnmapped, gup.ErrDenied, gup.ErrGone, gup.ErrPermission, fmt.Errorf("page: %w", gup.ErrDenied)} {
		for _, tx := range []bool{false, true} {
			r := newRig(t, nil)
			g := r.gup(0, fault.PIO)
			g.holes = map[uint64]error{5: why}
			put, src := r.n.Push, device.NodeID(7)
			if tx {
				put, src = r.n.PushTX, ownNode
			}
			for _, e := range []device.FaultEntry{entry(0, 1, 1, 4), entry(0, 1, 1, 5), entry(0, 2, 1, 5), entry(0, 3, 1, 6)} {
				e.Source = src
				put(e, 4096)
			}
			r.run()
			// Block 1 has a page that is resident and one that never will be.
			r.wantSent(rapf{0, src, 1, 1, true}, rapf{0, src, 2, 1, true}, rapf{0, src, 3, 1, false})
			if s := r.d.Stats().Slots[0]; s.RAPFFail != 2 || s.RAPF != 1 || s.Unresolvable != 1 {
				t.Errorf("%v: fail %d, RAPFs %d, unresolvable %d; want 2, 1, 1", why, s.RAPFFail, s.RAPF, s.Unresolvable)
			}
			for _, rec := range r.d.Records(-1) {
				want := fault.Failed
				if rec.Transaction == 3 {
					want = fault.Resolved
				}
				if rec.Outcome != want {
					t.Errorf("%v: record of block %d has outcome %v, want %v", why, rec.Transaction, rec.Outcome, want)
				}
			}
		}
	}
}

// The range ends with the mapping, and nothing beyond it is requested; a page beyond it that did
// fault is requested by itself.
func TestClipToMapping(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIA)
	g.limit = 30
	r.n.Push(entry(0, 1, 1, 4), 1<<20)
	r.run()
	g.want(t, pageIn{20, 16, true}, pageIn{4, 16, true})
	r.wantSent(rapf{0, 7, 1, 1, false})

	r.n.Push(entry(0, 2, 1, 4), 1<<20)
	r.n.Push(entry(0, 3, 1, 33), 4096)
	r.n.Push(entry(0, 4, 1, 90), 4096)
	r.run()
	r.wantSent(rapf{0, 7, 2, 1, false}, rapf{0, 7, 3, 1, true}, rapf{0, 7, 4, 1, true})
	for _, c := range g.calls {
		if c.page >= 36 && c != (pageIn{90, 1, true}) {
			t.Errorf("page-in %+v beyond the mapping", c)
		}
	}

	// A hole within.
	g.calls, g.limit, g.holes = nil, 1000, map[uint64]error{7: gup.ErrUnmapped}
	r.n.Push(entry(0, 5, 1, 4), 16*4096)
	r.n.Push(entry(0, 5, 1, 8), 12*4096)
	r.n.Push(entry(0, 6, 1, 7), 13*4096)
	r.run()
	r.wantSent(rapf{0, 7, 5, 1, false}, rapf{0, 7, 6, 1, true})
}

func TestTransient(t *testing.T) {
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	g.passes = map[uint64]int{5: 2, 9: 3}
	r.n.Push(entry(0, 1, 1, 5), 4096)
	r.n.Push(entry(0, 2, 1, 9), 4096)
	r.run()
	// Page 5 succeeds at the third try; 9 would at the fourth, and is left to the guard: nothing
	// is sent, and nothing fails.
	r.wantSent(rapf{0, 7, 1, 1, false})
	g.want(t, pageIn{5, 1, true}, pageIn{9, 1, true}, pageIn{5, 1, true}, pageIn{9, 1, true}, pageIn{5, 1, true}, pageIn{9, 1, true})
	for _, rec := range r.d.Records(-1) {
		want := fault.Resolved
		if rec.Transaction == 2 {
			want = fault.Unsent
		}
		if rec.Outcome != want {
			t.Errorf("record of block %d has outcome %v, want %v", rec.Transaction, rec.Outcome, want)
		}
	}
	// The guard retransmits block 2.
	r.n.Push(entry(0, 2, 2, 9), 4096)
	r.run()
	r.wantSent(rapf{0, 7, 2, 2, false})
}

func TestSourceFaults(t *testing.T) {
	tests := []struct {
		name   string
		change func(*faulttest.Node, *fault.Config)
		entry  bool // the device pushes a TXFIFO entry too
		policy fault.Policy
		want   []pageIn
		rapf   int
	}{
		{"TXFIFO", nil, true, fault.PIO, []pageIn{{5, 1, false}}, 1},
		{"time-outs by flag", func(_ *faulttest.Node, c *fault.Config) { c.TimeoutSource = true }, true, fault.PIO, []pageIn{{5, 1, false}}, 0},
		{"no TXFIFO", func(n *faulttest.Node, _ *fault.Config) {
			n.Set64(device.PL, device.PLCaps, faulttest.Caps&^device.CapsTXFIFO)
		}, false, fault.PIO, []pageIn{{5, 1, false}}, 0},
		{"no TXFIFO, four pages", func(n *faulttest.Node, _ *fault.Config) {
			n.Set64(device.PL, device.PLCaps, faulttest.Caps&^device.CapsTXFIFO)
		}, false, fault.PI4, []pageIn{{5, 4, false}}, 0},
		{"no TXFIFO, no length stated", func(n *faulttest.Node, _ *fault.Config) {
			n.Set64(device.PL, device.PLCaps, faulttest.Caps&^device.CapsTXFIFO)
		}, false, fault.PIA, []pageIn{{5, 4, false}}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.change)
			g := r.gup(0, tt.policy)
			r.n.Record = true
			r.n.Fault(0, 0x5678, false)
			if tt.entry {
				e := entry(0, 1, 1, 5)
				e.Source = ownNode
				r.n.PushTX(e, 4096)
			}
			r.run()
			g.want(t, tt.want...)
			if got := r.sent(); len(got) != tt.rapf {
				t.Errorf("sent %+v, want %d", got, tt.rapf)
			}
			if _, tx := r.n.Levels(); tx != 0 {
				t.Errorf("TXFIFO holds %d entries", tx)
			}
			if !tt.entry {
				for _, a := range r.n.Log {
					if a.Window == device.PL && a.Offset >= device.PLTXFIFO && a.Offset < device.PLPktzCfg {
						t.Errorf("an absent TXFIFO is accessed: %+v", a)
					}
				}
			}
			if rec := r.d.Records(-1); len(rec) != 1 || rec[0].Outcome != fault.Resolved || rec[0].Write || rec[0].Block != (tt.rapf == 1) {
				t.Errorf("records %+v", rec)
			}
		})
	}
}
