package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// half returns a frame with some packets of a block of 4096 bytes from peerPDID.
func half(mask uint64) *wire.Frame {
	f := data(1, 0x7f0000000000, 4096)
	f.SrcPDID, f.Present = peerPDID, mask
	return f
}

// Contexts end when PD_CFG or PD_PEERS no longer admits them: in the middle of a block no more is
// written, and accesses in flight are not counted.
func TestContextsEndWithTheirDomain(t *testing.T) {
	pdcfg := func(v uint64) func(*bench) {
		return func(b *bench) { b.write64(device.PL, device.PLPDCfg+8*2, v) }
	}
	for name, change := range map[string]func(*bench){
		"another PDID that admits nobody": func(b *bench) {
			pdcfg(0)(b)
			b.write64(device.PL, device.PLPDPeers+32*2, 0)
			pdcfg(device.PDCfg(strange, ownGen))(b)
		},
		"disabled":          pdcfg(0),
		"peers withdrawn":   func(b *bench) { b.write64(device.PL, device.PLPDPeers+32*2, 0) },
		"another peer only": func(b *bench) { b.write64(device.PL, device.PLPDPeers+32*2, strange) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.step(Event{Kind: FrameArrived, Frame: half(0x00ff)})
			first := b.take(Walk)
			change(b)
			b.step(Event{Kind: FrameArrived, Frame: half(0xff00)})
			for _, a := range b.take(Walk) {
				t.Errorf("a walk of slot %d for the rest of the block", a.Access.Slot)
			}
			// The walk in flight starts no move.
			b.step(Event{Kind: Walked, Access: first[0].Access.ID})
			for _, a := range b.out {
				if a.Kind == Move {
					t.Error("bytes are moved after the change")
				}
				if a.Kind == Transmit && a.Frame.Code == device.CodeAck {
					t.Error("the block is acknowledged")
				}
			}
			if n := b.n.InFlight(2); n != 0 || b.n.OpenContexts() != 0 {
				t.Errorf("%d accesses in flight, %d contexts", n, b.n.OpenContexts())
			}
			if err := b.n.Audit(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A move in flight when its domain ends is awaited and not counted; a source being read for the
// domain is not sent.
func TestMovesEndWithTheirDomain(t *testing.T) {
	b := newBench(t)
	f := data(1, 0x7f0000000000, 4096)
	f.HasWords, f.Completion = true, wire.Completion{VA: 0x7f0000002000, First: 1, Last: 2}
	b.step(Event{Kind: FrameArrived, Frame: f})
	b.step(Event{Kind: Walked, Access: b.take(Walk)[0].Access.ID})
	in := b.take(Move)
	d := device.Descriptor{Src: 0x10000, Dst: 0x20000, Size: 4096, DstNode: 1}
	b.step(Event{Kind: DoorbellRung, Slot: 2, Channel: 0, Words: d.Words()})
	b.step(Event{Kind: Walked, Access: b.take(Walk)[0].Access.ID})
	out := b.take(Move)
	b.write64(device.PL, device.PLPDCfg+8*2, 0)
	b.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(strange, ownGen))
	b.out = nil
	if n := b.n.InFlight(2); n != 2 {
		t.Errorf("%d accesses in flight, want 2", n)
	}
	b.step(Event{Kind: Moved, Access: in[0].Access.ID, OK: true})
	b.step(Event{Kind: Moved, Access: out[0].Access.ID, OK: true})
	for _, a := range b.out {
		switch {
		case a.Kind == Transmit:
			t.Errorf("sent: %+v", a.Frame.Header)
		case a.Kind == Interrupt, a.Kind == DescriptorChanged && a.Status == device.StatusGone:
		default:
			t.Errorf("%+v", a)
		}
	}
	if n := b.n.InFlight(2); n != 0 || b.n.OpenContexts() != 0 {
		t.Errorf("%d accesses in flight, %d contexts", n, b.n.OpenContexts())
	}
	if err := b.n.Audit(); err != nil {
		t.Error(err)
	}
}
