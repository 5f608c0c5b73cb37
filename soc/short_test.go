package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
)

// Large transfers that use their domain's full share leave room for short ones, whose accesses
// begin at once and which are not refused.
func TestShortTransferPassesLargeOnes(t *testing.T) {
	p := newPair(t, Config{})
	hang(p)
	refused := 0
	for i := range 60 {
		f := data(1, device.VA(0x40000000+i*device.BlockSize), 64)
		f.SrcNode, f.SrcPDID, f.ID = 9, ownPDID, device.TransactionID(i)
		if i%2 != 0 {
			f.SrcPDID = peerPDID
		}
		f.Block, f.Remaining = 5, 1<<20
		p.to.step(Event{Kind: FrameArrived, Frame: f})
		for _, a := range p.to.out {
			if a.Kind != Transmit {
				continue
			}
			if a.Frame.Code != device.CodeBufferFull {
				t.Fatalf("block %d: answer %+v", i, a.Frame.Header)
			}
			refused++
		}
		p.settle()
	}
	// A slot's 16 accesses less 4, and 32 waiting.
	if begun := len(p.walks); begun != 12 || refused != 60-12-32 {
		t.Fatalf("%d accesses of large transfers begun, %d blocks refused; want 12, 16", begun, refused)
	}
	if a := p.answered(p.ring(0x20000, 0, 0)); a != nil {
		t.Errorf("a short transfer: answer %+v before its memory has answered", a.Header)
	}
	if begun := len(p.walks); begun != 13 || p.walks[12].VA != 0x20000 {
		t.Errorf("the short transfer's access does not begin at once: %d have begun", begun)
	}
	p.heldWalks = false
	if a := p.settle(); a == nil || a.Code != device.CodeAck {
		t.Errorf("answer %+v, want an ACK", a)
	}
	if err := p.to.n.Audit(); err != nil {
		t.Error(err)
	}
}

// The same holds for contexts: a process's large transfers leave some for its short ones.
func TestShortTransferHasContext(t *testing.T) {
	p := newPair(t, Config{})
	hang(p)
	for i := range 29 {
		f := data(1, device.VA(0x40000000+i*device.BlockSize), 64)
		f.SrcNode, f.ID, f.Block, f.Remaining = 9, device.TransactionID(i), 5, 1<<20
		p.to.step(Event{Kind: FrameArrived, Frame: f})
		if acks := len(p.to.out); i == 28 && (acks != 1 || p.to.out[0].Kind != Transmit || p.to.out[0].Frame.Code != device.CodeNoContext) {
			t.Errorf("large block 28: actions %+v, want NACK 3", p.to.out)
		}
		p.settle()
	}
	if a := p.answered(p.ring(0x20000, 0, 0)); a != nil {
		t.Errorf("a short transfer: answer %+v before its memory has answered", a.Header)
	}
	p.heldWalks = false
	if a := p.settle(); a == nil || a.Code != device.CodeAck {
		t.Errorf("answer %+v, want an ACK", a)
	}
}
