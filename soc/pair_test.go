package soc

import (
	"bytes"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
)

const (
	initiatorID = 1
	targetID    = 5
)

// pair is two nodes under test with a transfer from one to the other.
type pair struct {
	t         *testing.T
	from, to  *bench
	seen      Action // last change of the transfer's descriptor
	written   int    // bytes moved into the target's memory
	absent    uint64 // absent pages of the target
	heldWalks bool   // the target's memory does not respond
	walks     []*pldma.Access
	source    []byte
	got       []byte // at the target
}

// newPair returns nodes 1 and 5, both with slot 2 set up for ownPDID; target configures the
// target.
func newPair(t *testing.T, target Config) *pair {
	t.Helper()
	pool := new(wire.Pool)
	target.ID, target.SVA, target.Epoch, target.Pool = targetID, true, 9, pool
	if target.VABits == 0 {
		target.VABits = 48
	}
	p := &pair{
		t:    t,
		from: newBenchOf(t, Config{ID: initiatorID, VABits: 48, SVA: true, Epoch: 3, Pool: pool}),
		to:   newBenchOf(t, target),
	}
	return p
}

// ring starts a transfer of 4096 bytes on channel 0 and returns its frame.
func (p *pair) ring(dst, notify device.VA, pdid device.PDID) *wire.Frame {
	p.t.Helper()
	p.source = bytes.Repeat([]byte{0xa5, 0x3c, 0x71, 0x0f}, 1024)
	d := device.Descriptor{Src: 0x10000, Dst: dst, Size: uint32(len(p.source)), DstNode: targetID, DstPDID: pdid, DstGeneration: ownGen, Notify: notify}
	p.from.step(Event{Kind: DoorbellRung, Slot: 2, Channel: 0, Words: d.Words()})
	f := p.sent()
	if f == nil {
		p.t.Fatal("the doorbell sends nothing")
	}
	return f
}

// sent performs the initiator's memory reads and returns the frame that it sends, nil if none.
func (p *pair) sent() (frame *wire.Frame) {
	p.t.Helper()
	for len(p.from.out) > 0 {
		out := p.from.out
		p.from.out = nil
		for _, a := range out {
			switch a.Kind {
			case Walk:
				p.from.step(Event{Kind: Walked, Access: a.Access.ID})
			case Move:
				copy(a.Access.Data, p.source)
				p.from.step(Event{Kind: Moved, Access: a.Access.ID, OK: true})
			case DescriptorChanged:
				p.seen = a
			case Transmit:
				if frame != nil {
					p.t.Fatalf("two frames: %+v and %+v", frame.Header, a.Frame.Header)
				}
				frame = a.Frame
			}
		}
	}
	return frame
}

// answered passes a frame to the target and returns the answer, nil if none.
func (p *pair) answered(f *wire.Frame) (answer *wire.Frame) {
	p.t.Helper()
	p.to.step(Event{Kind: FrameArrived, Frame: f})
	return p.settle()
}

// settle performs the target's memory accesses and returns what it sends to the initiator, nil if
// nothing.
func (p *pair) settle() (answer *wire.Frame) {
	p.t.Helper()
	if !p.heldWalks {
		for _, a := range p.walks {
			p.to.step(Event{Kind: Walked, Access: a.ID, Absent: p.absent})
		}
		p.walks = nil
	}
	for len(p.to.out) > 0 {
		out := p.to.out
		p.to.out = nil
		for _, a := range out {
			switch a.Kind {
			case Walk:
				if p.heldWalks {
					p.walks = append(p.walks, a.Access)
					continue
				}
				p.to.step(Event{Kind: Walked, Access: a.Access.ID, Absent: p.absent})
			case Move:
				p.got = append(p.got[:0], a.Access.Data...)
				p.written += len(a.Access.Data)
				p.to.step(Event{Kind: Moved, Access: a.Access.ID, OK: true})
			case Transmit:
				if a.Frame.DstNode != initiatorID {
					continue // from the blocks that fill the target
				}
				if answer != nil {
					p.t.Fatalf("two answers: %+v and %+v", answer.Header, a.Frame.Header)
				}
				answer = a.Frame
			}
		}
	}
	return answer
}

// fill starts n blocks from another node, of one domain, at the target, with IDs from first on.
func (p *pair) fill(n, first int, src device.PDID) {
	p.t.Helper()
	for i := range n {
		f := data(1, device.VA(0x40000000+(first+i)*device.BlockSize), 64)
		f.SrcNode, f.SrcPDID, f.ID = 9, src, device.TransactionID(first+i)
		if a := p.answered(f); a != nil {
			p.t.Fatalf("filling the target: %+v", a.Header)
		}
	}
}
