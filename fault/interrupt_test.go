package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/fault/faulttest"
)

// The offsets are from spec/hardware.md 3 and 5, by hand: IRQ_STATUS 0x20, IRQ_MASK 0x24; bank 3
// is page 16+3 of the window: FSR 0x13058, FAR 0x13060, FSYNR0 0x13068; GFSR 0x48.
func TestInterruptRegisters(t *testing.T) {
	registersOnly(t)
	r := newRig(t, nil)
	r.gup(3, fault.PIO)
	r.n.Fault(3, 0x7f0000123456, true)
	r.n.Push(entry(3, 5, 1, 0x7f0000123), 100)
	r.n.Record = true
	r.d.Interrupt(device.VectorFault)
	wantLog(t, accesses(r.n.Log), []string{
		"r32 pl+0x20 0x3",
		"w32 pl+0x24 0x2",
		"r32 smmu+0x13058 0x2",
		"r64 smmu+0x13060 0x7f0000123456",
		"r32 smmu+0x13068 0x10",
		"w32 smmu+0x13058 0x2",
		"r32 smmu+0x13058 0x0",
		"r32 smmu+0x48 0x0",
		"w32 pl+0x20 0x1",
		"r32 pl+0x20 0x2",
	})
	if len(r.n.Calls) != 0 {
		t.Error("the interrupt half pages in")
	}

	// The FIFO's half (spec/hardware.md 4): status, then EXT before the pop, two 64-bit reads;
	// STATUS cleared, unmasked, both FIFOs read once more. Words of the entry by hand (table
	// 3.2): a 7<<8|1, b 5<<20|1<<4|1, c 0x103<<16|0x000<<4|2<<1|1 with IOVA 0x0000123 and d
	// 0x00123<<12|IOVX<<1|1, IOVX = 0x7f0000123>>28 = 0x7f.
	r.n.Log = r.n.Log[:0]
	r.run()
	got := accesses(r.n.Log)
	want := []string{
		"r32 pl+0x1010 0x1",
		"r32 pl+0x1020 0x64",
		"r64 pl+0x1000 0x50001100000701",
		"r64 pl+0x1008 0x1230ff01030005",
		"r32 pl+0x1110 0x20000",
		"w32 pl+0x20 0x2",
		"w32 pl+0x24 0x0",
		"r32 pl+0x1010 0x20000",
		"r32 pl+0x1110 0x20000",
	}
	// Before it come the second vector and the first's repetition, if any: one read of IRQ_STATUS
	// each.
	for len(got) > 0 && got[0] == "r32 pl+0x20 0x2" {
		got = got[1:]
	}
	wantLog(t, got[:min(len(got), len(want))], want)
	r.wantSent(rapf{3, 7, 5, 1, false})
	if s := r.d.Stats(); s.Rounds != 1 || s.Faults != 1 {
		t.Errorf("rounds %d, faults %d; want 1 and 1", s.Rounds, s.Faults)
	}
}

func TestInterruptEitherVector(t *testing.T) {
	registersOnly(t)
	for _, v := range []int{device.VectorFault, device.VectorFIFO} {
		r := newRig(t, nil)
		r.gup(0, fault.PIO)
		r.n.Handler = nil // vectors are sent by hand only
		r.n.Fault(0, 0x5000, true)
		r.n.Push(entry(0, 1, 1, 5), 1)
		r.d.Interrupt(v)
		if fsr := r.n.Get(device.SMMU, device.Bank(0, device.FSR)); fsr != 0 {
			t.Errorf("vector %d: FSR reads %#x after it", v, fsr)
		}
		r.d.Interrupt(device.VectorFault)
		r.d.Interrupt(device.VectorFIFO)
		r.run()
		r.wantSent(rapf{0, 7, 1, 1, false})
		if s := r.d.Stats(); s.Rounds != 1 || s.Spurious != 2 {
			t.Errorf("vector %d: rounds %d, spurious %d; want 1 and 2", v, s.Rounds, s.Spurious)
		}
	}
	r := newRig(t, nil)
	r.n.Record = true
	for _, v := range []int{device.VectorMailbox, device.VectorDone, 4, -1} {
		r.d.Interrupt(v)
	}
	if len(r.n.Log) != 0 {
		t.Errorf("vectors of others access registers: %q", accesses(r.n.Log))
	}
}

func TestInterruptMore(t *testing.T) {
	registersOnly(t)
	fsr := func(b int) uint32 { return device.Bank(b, device.FSR) }
	tests := []struct {
		name  string
		do    func(*faulttest.Node)
		check func(*testing.T, *rig)
	}{
		{"a fault in between", func(n *faulttest.Node) {
			n.Fault(0, 0x1000, true)
			left := 2
			n.OnAccess = func(a faulttest.Access) {
				// The FSR was read as zero; the next fault arrives before IRQ_STATUS is cleared.
				if a.Write && a.Offset == device.PLIRQStatus && a.Window == device.PL && a.Value == 1 && left > 0 {
					left--
					n.Fault(0, 0x2000, true)
				}
			}
		}, func(t *testing.T, r *rig) {
			if s := r.d.Stats(); s.Faults != 3 {
				t.Errorf("saw %d faults, want 3", s.Faults)
			}
		}},
		{"multi", func(n *faulttest.Node) {
			n.Fault(0, 0x1000, true)
			n.Fault(0, 0x2000, true)
		}, func(t *testing.T, r *rig) {
			if s := r.d.Stats(); s.Faults != 1 || s.Multi != 1 {
				t.Errorf("faults %d, multi %d; want 1, 1", s.Faults, s.Multi)
			}
		}},
		{"bank without a domain", func(n *faulttest.Node) { n.Fault(9, 0x1000, true) }, func(t *testing.T, r *rig) {
			if v := r.n.Get(device.SMMU, fsr(9)); v != 0 {
				t.Errorf("FSR of bank 9 reads %#x", v)
			}
		}},
		{"global faults", func(n *faulttest.Node) {
			n.GlobalFault(device.GFSRICF)
			n.GlobalFault(device.GFSRUSF)
		}, func(t *testing.T, r *rig) {
			if v := r.n.Get(device.SMMU, device.GFSR); v != 0 || r.d.Stats().Global != 1 {
				t.Errorf("GFSR reads %#x, %d counted; want 0 and 1", v, r.d.Stats().Global)
			}
		}},
		{"FSR that clears late", func(n *faulttest.Node) { n.Fault(0, 0x1000, true); n.Sticky[0] = 3 }, func(t *testing.T, r *rig) {
			if v := r.n.Get(device.SMMU, fsr(0)); v != 0 || r.d.Stats().StuckFSR != 0 {
				t.Errorf("FSR reads %#x, stuck %d; want 0, 0", v, r.d.Stats().StuckFSR)
			}
		}},
		{"FSR that never clears", func(n *faulttest.Node) { n.Fault(0, 0x1000, true); n.Sticky[0] = 1 << 30 }, func(t *testing.T, r *rig) {
			s := r.d.Stats()
			if s.StuckFSR != 1000 || s.Faults > 64*1000 {
				t.Errorf("stuck %d, %d reads; want %d and a bound", s.StuckFSR, s.Faults, 1000)
			}
			if m := r.n.Get(device.PL, device.PLIRQMask); m&1 == 0 {
				t.Error("vector 0 is not masked")
			}
			// The FIFO's faults are served nevertheless.
			r.n.Push(entry(0, 1, 1, 5), 1)
			r.run()
			r.wantSent(rapf{0, 7, 1, 1, false})
		}},
		{"FSR that is set again for a while", func(n *faulttest.Node) { n.Fault(0, 0x1000, true); n.Sticky[0] = 200 }, func(t *testing.T, r *rig) {
			if s := r.d.Stats(); s.StuckFSR == 0 || s.StuckFSR > 10 {
				t.Errorf("stuck %d; want a few", s.StuckFSR)
			}
			if m := r.n.Get(device.PL, device.PLIRQMask); m != 0 {
				t.Errorf("IRQ_MASK %#x after the rounds, want 0", m)
			}
			if v := r.n.Get(device.SMMU, fsr(0)); v != 0 {
				t.Errorf("FSR reads %#x", v)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.gup(0, fault.PIO)
			tt.do(r.n)
			r.run()
			tt.check(t, r)
			if st := r.n.Get(device.PL, device.PLIRQMask) & 2; st != 0 {
				t.Error("vector 1 stays masked")
			}
		})
	}
}

func TestMaskKeepsOthersBits(t *testing.T) {
	registersOnly(t)
	r := newRig(t, func(n *faulttest.Node, _ *fault.Config) { n.Set(device.PL, device.PLIRQMask, 0xc) })
	r.gup(0, fault.PIO)
	r.n.Fault(0, 0x5000, true)
	r.n.Push(entry(0, 1, 1, 5), 1)
	r.n.Record = true
	r.run()
	var masks []string
	for _, a := range r.n.Log {
		if a.Write && a.Window == device.PL && a.Offset == device.PLIRQMask {
			masks = append(masks, fmt.Sprintf("%#x", a.Value))
		}
	}
	wantLog(t, masks, []string{"0xe", "0xc"})
}

func TestLookOnceMore(t *testing.T) {
	registersOnly(t)
	r := newRig(t, nil)
	g := r.gup(0, fault.PIO)
	r.n.Push(entry(0, 1, 1, 5), 1)
	r.n.OnAccess = func(a faulttest.Access) {
		if a.Write && a.Window == device.PL && a.Offset == device.PLIRQMask && a.Value == 0 {
			r.n.OnAccess = nil
			r.n.Push(entry(0, 2, 1, 6), 1)
		}
	}
	r.run()
	r.wantSent(rapf{0, 7, 1, 1, false}, rapf{0, 7, 2, 1, false})
	// Both entries were merged in one round.
	g.want(t, pageIn{5, 2, true})
}

func TestGone(t *testing.T) {
	registersOnly(t)
	gone := fmt.Errorf("socket: %w", device.ErrGone)
	for at := range 30 {
		r := newRig(t, nil)
		r.gup(0, fault.PIO)
		r.n.Fault(0, 0x5000, true)
		r.n.Push(entry(0, 1, 1, 5), 1)
		count := 0
		r.n.OnAccess = func(faulttest.Access) {
			if count++; count > at {
				r.n.Err = gone
			}
		}
		r.run()
		if r.n.Err == nil {
			if len(r.n.Sent) != 1 {
				t.Fatalf("%d accesses were enough and sent %d", at, len(r.n.Sent))
			}
			continue
		}
		if r.d.Stats().Gone == 0 {
			t.Errorf("gone after %d accesses is not counted", at)
		}
		r.d.Interrupt(device.VectorFault)
		if err := r.d.Add(fault.Target{Slot: 1, PDID: 9}); !errors.Is(err, device.ErrGone) {
			t.Errorf("gone after %d accesses: Add returned %v", at, err)
		}
	}
	r := newRig(t, func(n *faulttest.Node, _ *fault.Config) { n.Err = gone })
	if err := r.d.Add(fault.Target{Slot: 1, PDID: 9}); !errors.Is(err, device.ErrGone) {
		t.Errorf("Add on a device that is gone returned %v", err)
	}
	r.d.Interrupt(device.VectorFault)
}
