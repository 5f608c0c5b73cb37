package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/wire"
)

const (
	pdCfg2  = device.PLPDCfg + 8*2
	nextGen = ownGen + 1
)

// renew assigns slot 2 to the next domain of the same PDID, as the driver does.
func renew(b *bench) {
	b.write64(device.PL, pdCfg2, 0)
	b.write64(device.PL, pdCfg2, device.PDCfg(ownPDID, nextGen))
	b.out = nil
}

// Blocks for a domain that has ended are refused with code 5 and not written, whether the slot
// and PDID have a new domain or the sender names no generation.
func TestBlocksOfAnotherGeneration(t *testing.T) {
	for name, change := range map[string]func(*bench, *wire.Frame){
		"former domain": func(b *bench, _ *wire.Frame) { renew(b) },
		"no generation": func(_ *bench, f *wire.Frame) { f.DstGeneration = 0 },
		"no generation at either end": func(b *bench, f *wire.Frame) {
			f.DstGeneration = 0
			b.write64(device.PL, pdCfg2, device.PDCfg(ownPDID, 0))
			b.out = nil
		},
	} {
		b, f := newBench(t), data(1, 0x1000, 64)
		change(b, f)
		b.step(Event{Kind: FrameArrived, Frame: f})
		if len(b.out) != 1 || b.out[0].Kind != Transmit || b.out[0].Frame.Code != device.CodeDomain {
			t.Errorf("%s: %+v", name, b.out)
		}
	}
}

// A new generation alone ends everything of the slot's former domain.
func TestNewGenerationEndsTheFormerDomain(t *testing.T) {
	b := newBench(t)
	b.step(doorbell(2, 0, 64))
	b.step(Event{Kind: FrameArrived, Frame: half(1)})
	b.out = nil
	b.write64(device.PL, pdCfg2, device.PDCfg(ownPDID, nextGen))
	if c := b.n.Channel(2, 0); !c.Failing {
		t.Error("its transfer continues")
	}
	rest := half(2)
	b.step(Event{Kind: FrameArrived, Frame: rest})
	if w := b.take(Walk); len(w) != 0 {
		t.Error("its block continues")
	}
}

// A retransmission request is obeyed from the destination domain of the transfer, and from no
// earlier or later domain of its PDID.
func TestRAPFOfAnotherGeneration(t *testing.T) {
	for gen, want := range map[device.Generation]uint64{ownGen: 0, nextGen: 1, 0: 1} {
		p := newPair(t, Config{})
		p.absent = 1
		f := p.ring(0x20000, 0, 0)
		id, seq := f.ID, f.Seq
		p.acknowledge(p.answered(f))
		rapf := &wire.Frame{MessageLen: 1, Header: wire.Header{
			Kind: wire.Message, Epoch: 3, SrcNode: targetID, SrcInterface: 18, SrcPDID: ownPDID, SrcGeneration: gen,
			DstNode: initiatorID, DstMailbox: device.MailboxRequest,
		}}
		rapf.Message[0] = mailbox.RAPF{PDID: ownPDID, Claimed: ownPDID, Transaction: id, Sequence: seq, Fail: true}.Encode()
		p.acknowledge(rapf)
		if denied := p.from.count(device.RAPFDenied); denied != want {
			t.Errorf("generation %#x: %d denied, want %d", gen, denied, want)
		}
		if failed := p.seen.Done == device.DoneFailed; failed != (want == 0) {
			t.Errorf("generation %#x: the transfer fails: %v", gen, failed)
		}
	}
}

// Mail for a process goes only to the addressed domain; a late refusal is not shown to the next
// domain.
func TestMailOfAnotherGeneration(t *testing.T) {
	for gen, want := range map[device.Generation]uint8{ownGen: device.PktzFree, nextGen: device.PktzRefused, 0: device.PktzFree} {
		b := newBench(t)
		b.step(Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(5, 18, gen), Words: [8]uint64{42}, N: 1})
		if got := b.n.PacketizerStatus(18, 0); got != want {
			t.Errorf("generation %#x: STATUS %d, want %d", gen, got, want)
		}
	}
	p := newPair(t, Config{})
	p.from.step(Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(targetID, 18, nextGen), Words: [8]uint64{42}, N: 1, Number: 0xbeef})
	f := p.from.take(Transmit)[0].Frame
	if f.SrcGeneration != ownGen || f.DstGeneration != nextGen {
		t.Errorf("sent from generation %#x to %#x", f.SrcGeneration, f.DstGeneration)
	}
	p.to.step(Event{Kind: FrameArrived, Frame: f})
	refusal := p.to.take(Transmit)[0].Frame
	late := *refusal
	renew(p.from)
	p.from.step(Event{Kind: FrameArrived, Frame: &late})
	if got := p.from.n.PacketizerStatus(18, 0); got != device.PktzFree {
		t.Errorf("the next domain sees STATUS %d", got)
	}
	if s, words, ok := p.from.n.TakeMail(18); ok {
		t.Errorf("the next domain finds %+v %x in its mailbox", s, words)
	}
}

// A read names the target's domain; its data and its answer reach only the domain that requested
// it.
func TestReadsOfAnotherGeneration(t *testing.T) {
	p := newPair(t, Config{})
	m := goodRead()
	m.TargetGeneration = nextGen
	p.to.step(Event{Kind: FrameArrived, Frame: p.request(targetID, m)})
	answer := p.to.take(Transmit)[0].Frame
	if a, _ := mailbox.DecodeAnswer(answer.Message[0]); a.Code != device.CodeDomain || answer.DstGeneration != ownGen {
		t.Errorf("answer %+v to generation %#x", a, answer.DstGeneration)
	}
	renew(p.from)
	p.from.step(Event{Kind: FrameArrived, Frame: answer})
	if mail := p.from.take(MailArrived); len(mail) != 0 {
		t.Error("the next domain got the answer of the former one's read")
	}

	p = newPair(t, Config{})
	f := p.request(targetID, goodRead())
	p.to.step(Event{Kind: FrameArrived, Frame: f})
	p.to.step(Event{Kind: Walked, Access: p.to.take(Walk)[0].Access.ID})
	p.to.step(Event{Kind: Moved, Access: p.to.take(Move)[0].Access.ID, OK: true})
	var block *wire.Frame
	for _, a := range p.to.take(Transmit) {
		block = a.Frame
	}
	if block == nil || block.SrcGeneration != ownGen || block.DstGeneration != ownGen || !block.Read {
		t.Fatalf("data of a read: %+v", block)
	}
	// The next domain requests the same read; the former one's data is not for it.
	renew(p.from)
	p.request(targetID, goodRead())
	p.from.step(Event{Kind: FrameArrived, Frame: block})
	for _, a := range p.from.out {
		if a.Kind == Walk || a.Kind == Transmit && a.Frame.Code != device.CodeDomain {
			t.Errorf("data of the former domain's read: %+v", a)
		}
	}
}

// A process is told by a message of its own mailbox which of its messages another node has refused.
func TestLateRefusal(t *testing.T) {
	p := newPair(t, Config{})
	for _, number := range []uint16{1, 0, 0xbeef} {
		p.from.step(Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(targetID, 18, nextGen), N: 1, Number: number})
		p.to.step(Event{Kind: FrameArrived, Frame: p.from.take(Transmit)[0].Frame})
		p.from.step(Event{Kind: FrameArrived, Frame: p.to.take(Transmit)[0].Frame})
		s, words, ok := p.from.n.TakeMail(18)
		if !ok || s.Node != targetID || s.PDID != 0 || s.Words != 1 || words[0] != (mailbox.Refusal{Number: number}).Encode() {
			t.Errorf("message %d: the sender finds %+v %x, %v", number, s, words, ok)
		}
		if arrived := p.from.take(MailArrived); len(arrived) != 1 || arrived[0].Interface != 18 {
			t.Errorf("announced as %+v", arrived)
		}
	}
}
