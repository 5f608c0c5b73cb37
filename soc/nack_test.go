package soc

import (
	"bytes"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// outcome is the effect of a NACK at the initiator (messages.md 2).
type outcome int

const (
	pauses     outcome = iota // until a RAPF
	sentAgain                 // at once
	failsAtOne                // done 3 with the code as status
)

// nackCause provokes one code through its cause.
type nackCause struct {
	name    string
	code    device.Code
	target  Config
	dst     device.VA   // of the transfer; 0: 0x20000
	notify  device.VA   // of the transfer; 0: none
	pdid    device.PDID // destination's; 0: the own
	before  func(p *pair)
	link    func(p *pair, f *wire.Frame) *wire.Frame // changes the frame on the link
	counter device.Counter                           // at the target, beside what it sends
	counts  uint64
	cure    func(p *pair)
	then    outcome
}

// corrupted flips one bit in the frame's second packet on the link.
func corrupted(p *pair, f *wire.Frame) *wire.Frame {
	p.t.Helper()
	var arrived []*wire.Frame
	emit := func(f *wire.Frame) { arrived = append(arrived, f) }
	c := wire.NewCollector(new(wire.Pool))
	n := 0
	if err := wire.Cut(f, nil, func(b []byte) error {
		b = slices.Clone(b)
		if n++; n == 2 {
			b[wire.HeaderSize+wire.CRCSize+100] ^= 0x10
		}
		packet, err := wire.DecodePacket(b)
		if err == nil {
			c.Add(&packet, emit)
		}
		return err
	}); err != nil {
		p.t.Fatalf("cutting the frame: %v", err)
	}
	c.Flush(emit)
	c.Flush(emit)
	if len(arrived) != 1 {
		p.t.Fatalf("%d frames come out of the link", len(arrived))
	}
	return arrived[0]
}

// altered returns a link that changes a frame's header under a valid CRC: a block that no sender
// makes that keeps to messages.md 5.
func altered(change func(f *wire.Frame)) func(*pair, *wire.Frame) *wire.Frame {
	return func(_ *pair, f *wire.Frame) *wire.Frame {
		change(f)
		return f
	}
}

// hang makes the target's memory stop responding.
func hang(p *pair) { p.heldWalks = true }

// recovers makes it respond again and completes the waiting accesses.
func recovers(p *pair) {
	p.t.Helper()
	p.heldWalks = false
	if a := p.settle(); a != nil {
		p.t.Fatalf("the target answers a second time: %+v", a.Header)
	}
}

var nackCauses = []nackCause{
	{
		name: "page fault", code: device.CodeSlaveError, counter: device.FIFOPush, counts: 1,
		before: func(p *pair) { p.absent = 1 }, cure: func(p *pair) { p.absent = 0 }, then: pauses,
	},
	{
		name: "address past the VA width", code: device.CodeDecode, target: Config{VABits: 39}, dst: 1 << 39, then: failsAtOne,
	},
	{
		name: "notification past the VA width", code: device.CodeDecode, target: Config{VABits: 39}, notify: 1 << 39, then: failsAtOne,
	},
	{
		name: "contexts exhausted", code: device.CodeNoContext, target: Config{Contexts: 3},
		before: func(p *pair) { hang(p); p.fill(3, 0, peerPDID) }, cure: recovers, then: sentAgain,
	},
	{
		name: "the domain's contexts exhausted", code: device.CodeNoContext,
		before: func(p *pair) { hang(p); p.fill(32, 0, ownPDID) }, cure: recovers, then: sentAgain,
	},
	{
		name: "corrupt payload", code: device.CodeCorrupt, link: corrupted,
		counter: device.CRCPayload, counts: 1, then: sentAgain,
	},
	{
		name: "no such domain", code: device.CodeDomain, pdid: strange, then: failsAtOne,
	},
	{
		name: "a domain that does not admit the initiator's", code: device.CodeDomain, pdid: 0x44,
		before: func(p *pair) { p.to.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(0x44, ownGen)); p.to.out = nil },
		then:   failsAtOne,
	},
	{
		name: "a block across a boundary", code: device.CodeReserved,
		link: altered(func(f *wire.Frame) { f.VA += device.BlockSize - 4095 }), then: failsAtOne,
	},
	{
		name: "a block larger than its transfer", code: device.CodeReserved,
		link: altered(func(f *wire.Frame) { f.Remaining = uint32(f.Length) - 1 }), then: failsAtOne,
	},
	{
		name: "data without bytes", code: device.CodeReserved,
		link: altered(func(f *wire.Frame) { f.Length, f.Payload, f.Present = 0, f.Payload[:0], 0 }), then: failsAtOne,
	},
	{
		// 16 accesses in flight and 32 waiting, of two domains: neither has used up its contexts.
		name: "buffer full", code: device.CodeBufferFull,
		before: func(p *pair) { hang(p); p.fill(24, 0, ownPDID); p.fill(24, 24, peerPDID) }, cure: recovers, then: sentAgain,
	},
}

// refuse brings a transfer to its first NACK, checks it and returns it.
func (c *nackCause) refuse(t *testing.T) (*pair, *wire.Frame) {
	t.Helper()
	p := newPair(t, c.target)
	if c.before != nil {
		c.before(p)
	}
	dst := c.dst
	if dst == 0 {
		dst = 0x20000
	}
	f := p.ring(dst, c.notify, c.pdid)
	sent := f.Header
	if c.link != nil {
		f = c.link(p, f)
	}
	counted := p.to.count(c.counter)
	nack := p.answered(f)
	if nack == nil {
		t.Fatal("no answer")
	}
	if nack.Kind != wire.Ack || nack.Code != c.code || nack.SrcNode != targetID || nack.ID != sent.ID || nack.Seq != sent.Seq ||
		nack.First != sent.First || nack.Epoch != sent.Epoch || nack.MessageLen != 0 {
		t.Errorf("answer %+v to %+v; want NACK %d of the same block", nack.Header, sent, c.code)
	}
	if c.counts > 0 && p.to.count(c.counter) != counted+c.counts {
		t.Errorf("counter %v of the target went from %d to %d, want %d more", c.counter, counted, p.to.count(c.counter), c.counts)
	}
	if p.written != 0 || p.to.count(device.RXBlocks) != 0 {
		t.Errorf("%d bytes and %d blocks of a refused block were received", p.written, p.to.count(device.RXBlocks))
	}
	return p, nack
}

// acknowledge passes an answer to the initiator and returns the frame that it then sends.
func (p *pair) acknowledge(a *wire.Frame) *wire.Frame {
	p.t.Helper()
	p.from.step(Event{Kind: FrameArrived, Frame: a})
	return p.sent()
}

// Each code, from its cause to its effect at the initiator (messages.md 2; spec/firmware.md
// "Acknowledgement").
func TestNackCauses(t *testing.T) {
	codes := make(map[device.Code]bool)
	for _, c := range nackCauses {
		codes[c.code] = true
		t.Run(c.name, func(t *testing.T) {
			p, nack := c.refuse(t)
			id, seq := nack.ID, nack.Seq
			again := p.acknowledge(nack)
			for code := range device.Code(8) {
				want := uint64(0)
				if code == c.code {
					want = 1
				}
				if got := p.from.count(device.Nacks0 + device.Counter(code)); got != want {
					t.Errorf("nacks_%d is %d, want %d", code, got, want)
				}
			}
			switch c.then {
			case failsAtOne:
				if again != nil || p.seen.Done != device.DoneFailed || p.seen.Status != uint8(c.code) {
					t.Errorf("sent %v, done %d, status %d; want nothing, 3, %d", again, p.seen.Done, p.seen.Status, c.code)
				}
				if list := p.from.n.Transactions(); len(list) != 0 {
					t.Errorf("transactions %+v of a transfer that failed", list)
				}
				return
			case pauses:
				if again != nil || p.seen.Done != device.DoneOngoing || p.seen.Paused != 1 {
					t.Fatalf("sent %v, done %d, %d paused; want nothing, 2, 1", again, p.seen.Done, p.seen.Paused)
				}
				c.cure(p)
				rapf := &wire.Frame{MessageLen: 1}
				rapf.Header = wire.Header{
					Kind: wire.Message, Epoch: 3, SrcNode: targetID, SrcInterface: 18, SrcPDID: ownPDID, SrcGeneration: ownGen,
					DstNode: initiatorID, DstMailbox: device.MailboxRequest,
				}
				rapf.Message[0] = mailbox.RAPF{PDID: ownPDID, Claimed: ownPDID, Transaction: id, Sequence: seq}.Encode()
				again = p.acknowledge(rapf)
			case sentAgain:
				if c.cure != nil {
					c.cure(p)
				}
			}
			if again == nil || again.ID != id || !again.Seq.Newer(seq) || p.seen.Done != device.DoneOngoing {
				t.Fatalf("sent %+v, done %d; want block %d under a number newer than %d, done 2", again, p.seen.Done, id, seq)
			}
			if got := p.from.count(device.Retransmits); got != 1 {
				t.Errorf("%d retransmissions, want 1", got)
			}
			// The cause is gone: the block is received and the transfer completes.
			p.written = 0
			ack := p.answered(again)
			if ack == nil || ack.Code != device.CodeAck {
				t.Fatalf("answer %+v to the retransmitted block", ack)
			}
			if !bytes.Equal(p.got, p.source) || p.written != len(p.source) {
				t.Errorf("%d bytes were received, or wrong ones", p.written)
			}
			if more := p.acknowledge(ack); more != nil || p.seen.Done != device.DoneCompleted || p.seen.Status != 0 {
				t.Errorf("sent %v, done %d, status %d; want nothing, 1, 0", more, p.seen.Done, p.seen.Status)
			}
		})
	}
	for code := device.CodeSlaveError; code <= device.CodeBufferFull; code++ {
		if !codes[code] {
			t.Errorf("no cause for code %d", code)
		}
	}
}

// A block that is refused until the limit fails its transfer with the code of the cause, not with
// the limit's (spec/firmware.md "Resilience"), so that the user sees the reason.
func TestNackCausesThatStay(t *testing.T) {
	for _, c := range nackCauses {
		if c.then != sentAgain {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p, nack := c.refuse(t)
			sendings := 1
			for p.seen.Done == device.DoneOngoing {
				again := p.acknowledge(nack)
				if again == nil && p.seen.Done == device.DoneOngoing {
					// In back-off.
					p.from.now = p.from.n.Deadline()
					p.from.step(Event{Kind: Tick})
					again = p.sent()
				}
				if again == nil {
					break
				}
				if sendings++; sendings > 100 {
					t.Fatal("the transfer does not end")
				}
				if c.link != nil {
					again = c.link(p, again)
				}
				if nack = p.answered(again); nack == nil || nack.Code != c.code {
					t.Fatalf("answer %+v to sending %d, want NACK %d", nack, sendings, c.code)
				}
			}
			// One sending and 64 retransmissions (spec/firmware.md).
			if sendings != 65 || p.seen.Done != device.DoneFailed || p.seen.Status != uint8(c.code) {
				t.Errorf("%d sendings, done %d, status %d; want 65, 3, %d", sendings, p.seen.Done, p.seen.Status, c.code)
			}
			if got := p.from.count(device.Nacks0 + device.Counter(c.code)); got != 65 {
				t.Errorf("nacks_%d is %d, want 65", c.code, got)
			}
			if p.written != 0 {
				t.Errorf("%d bytes of a refused block were received", p.written)
			}
		})
	}
}
