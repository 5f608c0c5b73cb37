package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/wire"
)

// goodRead returns a request that the target of newPair serves.
func goodRead() mailbox.ReadRequest {
	return mailbox.ReadRequest{
		Tag: 77, Size: 4096, Src: 0x50000, Dst: 0x60000, Notify: 0x70000, First: 1, Last: 2,
		TargetGeneration: ownGen,
	}
}

// request makes the initiator's process request a read from node dst. It returns the frame sent,
// nil if the packetizer refuses it.
func (p *pair) request(dst device.NodeID, m mailbox.ReadRequest) *wire.Frame {
	p.t.Helper()
	ev := Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(dst, device.MailboxRead, 0), N: mailbox.ReadRequestWords}
	words := m.Encode()
	copy(ev.Words[:], words[:])
	p.from.step(ev)
	out := p.from.take(Transmit)
	if len(out) > 1 {
		p.t.Fatalf("%d frames of one request", len(out))
	}
	if refused := p.from.n.PacketizerStatus(18, 0) == device.PktzRefused; refused != (len(out) == 0) {
		p.t.Fatalf("%d frames, STATUS refused: %v", len(out), refused)
	}
	if len(out) == 0 {
		return nil
	}
	return out[0].Frame
}

// untouched checks that a read left no trace at the target: no memory access, no channel, no
// transaction, and no frames but the expected answers.
func (p *pair) untouched(out []Action, answers int) (answer *wire.Frame) {
	p.t.Helper()
	for _, a := range out {
		if a.Kind == Transmit && a.Frame.Kind == wire.Message {
			answers--
			answer = a.Frame
			continue
		}
		p.t.Errorf("the target emits %+v", a)
	}
	if answers != 0 {
		p.t.Errorf("the target sends %d answers too few", answers)
	}
	if n := p.to.n.InFlight(2); n != 0 {
		p.t.Errorf("%d accesses to the target's memory", n)
	}
	for ch := range device.ChannelsPerSlot {
		if p.to.n.Channel(2, ch).Live {
			p.t.Errorf("channel %d of the target is live", ch)
		}
	}
	if list := p.to.n.Transactions(); len(list) != 0 {
		p.t.Errorf("transactions %+v at the target", list)
	}
	if blocks := p.to.count(device.TXBlocks); blocks != 0 {
		p.t.Errorf("the target issued %d blocks", blocks)
	}
	return answer
}

// An impossible read: an error at the initiator, no effect at the target (spec/firmware.md "Read
// path").
func TestBadReads(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(m *mailbox.ReadRequest)
		target Config
		before func(p *pair)
		link   func(f *wire.Frame) // changes the frame on the link
		code   device.Code
	}{
		{name: "size 0", change: func(m *mailbox.ReadRequest) { m.Size = 0 }, code: device.CodeDecode},
		{name: "source past the VA width", change: func(m *mailbox.ReadRequest) { m.Src = 1 << 39 }, target: Config{VABits: 39}, code: device.CodeDecode},
		{name: "source that ends past the VA width", change: func(m *mailbox.ReadRequest) { m.Src = 1<<39 - 4095 }, target: Config{VABits: 39}, code: device.CodeDecode},
		{name: "source at the end of all addresses", change: func(m *mailbox.ReadRequest) { m.Src = ^device.VA(0) - 4094 }, code: device.CodeDecode},
		{name: "destination past the VA width", change: func(m *mailbox.ReadRequest) { m.Dst = 1 << 48 }, code: device.CodeDecode},
		{name: "notification past the VA width", change: func(m *mailbox.ReadRequest) { m.Notify = 1<<48 + 16 }, code: device.CodeDecode},
		{name: "notification that is not aligned", change: func(m *mailbox.ReadRequest) { m.Notify += 8 }, code: device.CodeDecode},
		{name: "no notification", change: func(m *mailbox.ReadRequest) { m.Notify = 0 }, code: device.CodeDecode},
		{name: "no such domain", change: func(m *mailbox.ReadRequest) { m.Target = strange }, code: device.CodeDomain},
		{
			name: "a domain that has not admitted us", change: func(m *mailbox.ReadRequest) { m.Target = 0x44 },
			before: func(p *pair) { p.to.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(0x44, ownGen)) }, code: device.CodeDomain,
		},
		{
			name: "a domain that no longer admits us", change: func(m *mailbox.ReadRequest) { m.Target = 0x44 },
			before: func(p *pair) {
				p.to.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(0x44, ownGen))
				p.to.write64(device.PL, device.PLPDPeers+32*2, ownPDID)
				p.to.write64(device.PL, device.PLPDPeers+32*2, peerPDID)
			}, code: device.CodeDomain,
		},
		{
			name: "a forged PDID in the request", change: func(m *mailbox.ReadRequest) { m.Target, m.PDID = 0x44, peerPDID },
			before: func(p *pair) { p.to.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(0x44, ownGen)) }, code: device.CodeDomain,
		},
		{
			// After the stamping by the initiator's packetizer: only the PDID beside the packet
			// is trusted.
			name: "a PDID forged on the link", change: func(m *mailbox.ReadRequest) { m.Target = 0x44 },
			before: func(p *pair) { p.to.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(0x44, ownGen)) },
			link: func(f *wire.Frame) {
				f.Message[0] = f.Message[0]&^(0xffff<<mailbox.PDIDShift) | peerPDID<<mailbox.PDIDShift
			},
			code: device.CodeDomain,
		},
		{
			name: "a requester to whom the target has no route", change: func(*mailbox.ReadRequest) {},
			target: Config{Route: func(n device.NodeID) bool { return n != initiatorID }}, code: device.CodeDecode,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, tt.target)
			if tt.before != nil {
				tt.before(p)
				p.to.out = nil
			}
			m := goodRead()
			tt.change(&m)
			f := p.request(targetID, m)
			if f == nil {
				t.Fatal("the request is not sent")
			}
			if tt.link != nil {
				tt.link(f)
			}
			p.to.step(Event{Kind: FrameArrived, Frame: f})
			out := p.to.out
			p.to.out = nil
			answer := p.untouched(out, 1)
			if answer == nil {
				t.FailNow()
			}
			p.from.step(Event{Kind: FrameArrived, Frame: answer})
			if mails := p.from.take(MailArrived); len(mails) != 1 || mails[0].Interface != 18 {
				t.Fatalf("mail %+v, want one in mailbox 18", mails)
			}
			_, words, ok := p.from.n.TakeMail(18)
			a, err := mailbox.DecodeAnswer(words[0])
			want := mailbox.Ack{Transaction: device.TransactionID(m.Tag), Code: tt.code, Sequence: device.Sequence(tt.code)}
			if !ok || err != nil || a != want {
				t.Fatalf("answer %+v (%v, %v), want %+v", a, ok, err, want)
			}
			// The read is over: its tag is free for another one, which is served.
			other := goodRead()
			other.Dst += 0x100000
			if p.request(targetID, other) == nil {
				t.Error("the tag of a failed read stays in use")
			}
		})
	}
}

// Requests that the initiator's own packetizer refuses: no frame is sent.
func TestBadReadsRefusedAtOnce(t *testing.T) {
	p := newPair(t, Config{})
	if p.request(targetID, goodRead()) == nil {
		t.Fatal("a valid request is not sent")
	}
	for name, change := range map[string]func(m *mailbox.ReadRequest){
		"another size":         func(m *mailbox.ReadRequest) { m.Size++ },
		"another destination":  func(m *mailbox.ReadRequest) { m.Dst += 64 },
		"another notification": func(m *mailbox.ReadRequest) { m.Notify += 16 },
		"other words":          func(m *mailbox.ReadRequest) { m.Last++ },
		"another domain":       func(m *mailbox.ReadRequest) { m.Target = peerPDID },
	} {
		m := goodRead()
		change(&m)
		refused := p.from.count(device.MboxRefused)
		if f := p.request(targetID, m); f != nil {
			t.Errorf("tag in use, %s: %+v is sent", name, f.Header)
		}
		if got := p.from.count(device.MboxRefused); got != refused+1 {
			t.Errorf("tag in use, %s: mbox_refused goes from %d to %d", name, refused, got)
		}
	}
	if f := p.request(6, goodRead()); f != nil {
		t.Errorf("tag in use, another node: %+v is sent", f.Header)
	}

	lost := newPair(t, Config{})
	lost.from = newBenchOf(t, Config{ID: initiatorID, VABits: 48, SVA: true, Epoch: 3, Route: func(n device.NodeID) bool { return n != 6 }})
	if f := lost.request(6, goodRead()); f != nil {
		t.Errorf("node that does not exist: %+v is sent", f.Header)
	}
	if got := lost.from.count(device.MboxRefused); got != 1 {
		t.Errorf("node that does not exist: mbox_refused is %d, want 1", got)
	}
	// Nothing of it stays open: the tag can be used for another read.
	m := goodRead()
	m.Size = 64
	if lost.request(targetID, m) == nil {
		t.Error("the tag of a request that was never sent is in use")
	}
}

// A repeated request, as after a lost answer, is sent again and served once.
func TestReadAskedForAgainIsServedOnce(t *testing.T) {
	p := newPair(t, Config{})
	for i := range 3 {
		f := p.request(targetID, goodRead())
		if f == nil {
			t.Fatalf("request %d is not sent", i)
		}
		p.to.step(Event{Kind: FrameArrived, Frame: f})
	}
	if walks := p.to.take(Walk); len(walks) != 1 || walks[0].Access.Write || walks[0].Access.VA != 0x50000 {
		t.Errorf("walks %+v, want one of the source", walks)
	}
	if blocks := p.to.count(device.TXBlocks); blocks != 1 {
		t.Errorf("%d blocks issued, want 1", blocks)
	}
}

// TestReadsOverANewLink loses the requests of reads with a link. The node sends them again at LinkUp, and a target
// that has already served a request drops it.
func TestReadsOverANewLink(t *testing.T) {
	p := newPair(t, Config{})
	m := goodRead()
	m.Target = 0 // the same PDID
	first := p.request(targetID, m)
	if first == nil {
		t.Fatal("a valid request is not sent")
	}
	linkUp := func(node device.NodeID) (frames []*wire.Frame) {
		p.from.step(Event{Kind: LinkUp, Destination: uint64(node)})
		for _, a := range p.from.take(Transmit) {
			frames = append(frames, a.Frame)
		}
		return frames
	}
	if !p.from.n.Uses(targetID) || p.from.n.Uses(6) || len(linkUp(6)) != 0 {
		t.Error("a read from another node is taken for one from node 6")
	}
	again := linkUp(targetID)
	if len(again) != 1 {
		t.Fatalf("%d requests are sent again, want 1", len(again))
	}
	for _, f := range []*wire.Frame{again[0], linkUp(targetID)[0], first} {
		p.to.step(Event{Kind: FrameArrived, Frame: f})
	}
	if walks := p.to.take(Walk); len(walks) != 1 || walks[0].Access.VA != 0x50000 || p.to.count(device.TXBlocks) != 1 {
		t.Errorf("walks %+v, %d blocks, want one of the source", walks, p.to.count(device.TXBlocks))
	}
}

// A refusal is received and ends nothing: it may be late or duplicated, when the read has been
// requested again and is being served. A failure ends the read.
func TestRefusedReadStaysOpen(t *testing.T) {
	p := newPair(t, Config{})
	f := p.request(targetID, goodRead())
	if f == nil {
		t.Fatal("a valid request is not sent")
	}
	other := goodRead()
	other.Dst += 0x100000
	for _, tt := range []struct {
		name string
		a    mailbox.Ack
		open bool
	}{
		{"refused", mailbox.Ack{Transaction: 77, Code: device.CodeNoContext}, true},
		{"refused, duplicated", mailbox.Ack{Transaction: 77, Code: device.CodeNoContext}, true},
		{"failed", mailbox.Ack{Transaction: 77, Code: device.CodeDomain, Sequence: device.Sequence(device.StatusDomain)}, false},
	} {
		answer := &wire.Frame{Header: wire.Header{Kind: wire.Message, Epoch: f.Epoch, SrcNode: targetID, DstNode: initiatorID, DstMailbox: 18, DstGeneration: ownGen}, MessageLen: 1}
		answer.Message[0] = tt.a.Encode()
		p.from.step(Event{Kind: FrameArrived, Frame: answer})
		if mails := p.from.take(MailArrived); len(mails) != 1 {
			t.Errorf("%s: the process has %d messages, want 1", tt.name, len(mails))
		}
		p.from.n.TakeMail(18)
		if open := p.request(targetID, other) == nil; open != tt.open {
			t.Errorf("%s: its tag is in use: %v, want %v", tt.name, open, tt.open)
		}
	}
}
