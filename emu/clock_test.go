package emu_test

import (
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
)

// late is a pager that blocks the engine for longer than the guard, like a host without a free
// processor.
type late struct {
	space.Pager
	now func() int64
}

const (
	shortGuard = 5 * time.Millisecond
	stalled    = 2 * shortGuard
)

func (p late) PageIn(va device.VA, pages int, write bool) gup.Result {
	for began := p.now(); p.now()-began < int64(stalled); {
	}
	return p.Pager.PageIn(va, pages, write)
}

// The guard does not retransmit a block whose page is resident only because the engine had no processor
// in the meantime: the engine handles the events first.
func TestStallIsNoTimeOut(t *testing.T) {
	r := newRig(t, fault.PIO)
	counts := map[device.Counter]uint64{}
	r.on(0, func() {
		if err := r.engine.Bus(0).Window(device.PL).Write32(device.PLGuardUS, uint32(shortGuard.Microseconds())); err != nil {
			t.Error(err)
		}
	})
	r.on(1, func() {
		s := r.sides[1]
		r.engine.Detach(1, s.domain.Slot)
		a := emu.Attachment{Pages: s.pages, Wake: s.mem.WakeFD(), Space: space.NewDirect(r.process, late{gup.New(r.process), r.engine.Now})}
		if err := r.engine.Attach(1, s.domain.Slot, &a); err != nil {
			t.Error(err)
		}
	})
	src, dst := make([]byte, 64<<10), absent(t, 64<<10)
	if v := r.write(0, device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(len(src)), DstNode: 1}); v != device.DoneCompleted {
		t.Fatalf("done %d", v)
	}
	r.on(0, func() {
		for _, c := range []device.Counter{device.Retransmits, device.RAPFRx, device.RAPFStale, device.Timeouts} {
			counts[c] = r.engine.Node(0).Count(c)
		}
	})
	if counts[device.RAPFRx] == 0 || counts[device.Retransmits] != counts[device.RAPFRx] || counts[device.RAPFStale]+counts[device.Timeouts] != 0 {
		t.Errorf("%d retransmissions, %d RAPFs, %d stale, %d time-outs", counts[device.Retransmits], counts[device.RAPFRx], counts[device.RAPFStale], counts[device.Timeouts])
	}
}
