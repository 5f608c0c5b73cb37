package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
)

// bench is a node under test: its actions are recorded, and the test answers its walks and moves.
type bench struct {
	t     *testing.T
	n     *Node
	now   int64
	out   []Action
	links map[[2]uint32]uint32 // link numbers that the node assigned, by node and epoch
}

const (
	ownPDID  = 0x11
	peerPDID = 0x22
	strange  = 0x33
	ownGen   = 0x1001 // of slot 2
	peerGen  = 0x2002 // of senders elsewhere
)

// newBench returns node 5 with slot 2 set up for ownPDID, peerPDID admitted.
func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOf(t, Config{ID: 5, VABits: 48, SVA: true, Epoch: 9})
}

// newBenchOf is newBench for a node of another configuration.
func newBenchOf(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, n: New(cfg), links: map[[2]uint32]uint32{}}
	b.write32(device.PL, device.PLCtrl, device.CtrlEnable)
	b.write32(device.SMMU, device.SCR0, device.SCR0GFRE|device.SCR0GFIE|device.SCR0USFCFG)
	b.write32(device.SMMU, device.SMR+4*2, device.SMRValid|2)
	b.write32(device.SMMU, device.S2CR+4*2, 2)
	b.write32(device.SMMU, device.Bank(2, device.SCTLR), device.SCTLRDriver)
	b.write64(device.PL, device.PLPDPeers+32*2, peerPDID)
	b.write64(device.PL, device.PLPktzCfg+8*2, packetizer.Config{PDID: ownPDID, Node: cfg.ID, Interface: 2, Enable: true}.Encode())
	b.write64(device.PL, device.PLPktzCfg+8*18, packetizer.Config{PDID: ownPDID, Node: cfg.ID, Interface: 18, Enable: true}.Encode())
	b.write64(device.PL, device.PLMboxCfg+8*18, ownPDID|device.CfgEnable)
	b.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(ownPDID, ownGen))
	b.out = nil
	return b
}

func (b *bench) write32(w device.WindowID, off uint32, v uint64) {
	b.out = b.n.Store(b.now, w, off, 4, v, b.out)
}
func (b *bench) write64(w device.WindowID, off uint32, v uint64) {
	b.out = b.n.Store(b.now, w, off, 8, v, b.out)
}
func (b *bench) step(ev Event) {
	if f := ev.Frame; f != nil && f.Link == 0 && (f.Kind == wire.Data || f.Kind == wire.Words) {
		f.Link = b.link(f.SrcNode, f.Epoch)
	}
	b.out = b.n.Step(b.now, &ev, b.out)
}

// link returns the number that the node assigns to a life of another node; that node learns it by
// sending a frame without it.
func (b *bench) link(node device.NodeID, epoch uint32) uint32 {
	k := [2]uint32{uint32(node), epoch}
	if b.links[k] == 0 {
		f := &wire.Frame{Header: wire.Header{Kind: wire.Data, SrcNode: node, Epoch: epoch, DstNode: b.n.ID()}}
		for _, a := range b.n.Step(b.now, &Event{Kind: FrameArrived, Frame: f}, nil) {
			if a.Kind == Transmit && a.Frame.Kind == wire.Link {
				b.links[k] = a.Frame.Link
			}
		}
	}
	return b.links[k]
}

// take returns the actions of a kind and clears the list.
func (b *bench) take(k ActionKind) (found []Action) {
	for _, a := range b.out {
		if a.Kind == k {
			found = append(found, a)
		}
	}
	b.out = nil
	return found
}

func (b *bench) count(c device.Counter) uint64 { return b.n.Count(c) }

// data returns a frame of one block from node 1, as its PLDMA sends it.
func data(seq int, va device.VA, length int) *wire.Frame {
	f := &wire.Frame{Payload: make([]byte, length)}
	f.Header = wire.Header{
		Kind: wire.Data, Epoch: 3, SrcNode: 1, SrcPDID: ownPDID, DstNode: 5, DstPDID: ownPDID, SrcGeneration: peerGen, DstGeneration: ownGen,
		ID: 7, Seq: device.Sequence(seq), First: 1, Length: uint16(length), VA: va, Remaining: uint32(length),
	}
	f.Present = wire.All(length)
	return f
}

func TestFaultedBlock(t *testing.T) {
	b := newBench(t)
	b.step(Event{Kind: FrameArrived, Frame: data(1, 0x7f0000001800, 0x2000)})
	walks := b.take(Walk)
	if len(walks) != 1 || !walks[0].Access.Write || walks[0].Access.Pages() != 3 || walks[0].Access.Slot != 2 {
		t.Fatalf("walks: %+v", walks)
	}
	b.step(Event{Kind: Walked, Access: walks[0].Access.ID, Absent: 0b101})
	var vectors []uint8
	var acks []*wire.Frame
	for _, a := range b.out {
		switch a.Kind {
		case Interrupt:
			vectors = append(vectors, a.Vector)
		case Transmit:
			acks = append(acks, a.Frame)
		case Move:
			t.Error("bytes of a faulting block are moved")
		}
	}
	if len(acks) != 1 || acks[0].Code != device.CodeSlaveError || acks[0].Epoch != 3 || acks[0].Seq != 1 || acks[0].ID != 7 {
		t.Errorf("answers: %+v; want one NACK 1", acks)
	}
	if len(vectors) != 2 || vectors[0] != device.VectorFault || vectors[1] != device.VectorFIFO {
		t.Errorf("vectors %v, want 0 and 1", vectors)
	}
	// One entry per page, each with the remaining bytes of the transfer from there.
	for i, want := range []struct {
		page uint64
		ext  uint32
	}{{0x7f0000001, 0x2000}, {0x7f0000003, 0x2000 - 0x1800}} {
		e, ext, ok := b.n.PeekFault(false, i)
		if !ok || e.Page != want.page || ext != want.ext || e.Source != 1 || e.PDID != ownPDID || e.Response != device.ResponseSlaveError {
			t.Errorf("entry %d: %+v, EXT %#x; want page %#x, EXT %#x", i, e, ext, want.page, want.ext)
		}
	}
}

// A vector is sent when (STATUS and not MASK) goes from 0 to 1; a bit cleared
// while its cause still holds is set again at once (spec/hardware.md 3).
func TestInterruptStatus(t *testing.T) {
	b := newBench(t)
	b.write32(device.PL, device.PLIRQMask, 2)
	b.step(Event{Kind: FrameArrived, Frame: data(1, 0x1000, 64)})
	b.step(Event{Kind: Walked, Access: b.take(Walk)[0].Access.ID, Absent: 1})
	if v := b.take(Interrupt); len(v) != 1 || v[0].Vector != device.VectorFault {
		t.Errorf("vectors %+v with vector 1 masked", v)
	}
	if s := b.n.Load(device.PL, device.PLIRQStatus, 4); s != 3 {
		t.Errorf("STATUS %#x, want 3", s)
	}
	b.write32(device.PL, device.PLIRQMask, 0)
	if v := b.take(Interrupt); len(v) != 1 || v[0].Vector != device.VectorFIFO {
		t.Errorf("vectors %+v at unmasking", v)
	}
	b.write32(device.PL, device.PLIRQStatus, 3)
	if s := b.n.Load(device.PL, device.PLIRQStatus, 4); s != 3 {
		t.Errorf("STATUS %#x after a clear with both causes holding, want 3", s)
	}
	if v := b.take(Interrupt); len(v) != 2 {
		t.Errorf("vectors %+v; a bit that is set again is a new edge", v)
	}
	b.n.Load(device.PL, device.PLRXFIFO, 8)
	b.n.Load(device.PL, device.PLRXFIFO+8, 8)
	b.write32(device.SMMU, device.Bank(2, device.FSR), ^uint64(0))
	b.write32(device.PL, device.PLIRQStatus, 3)
	if s := b.n.Load(device.PL, device.PLIRQStatus, 4); s != 0 {
		t.Errorf("STATUS %#x with no cause left", s)
	}
	if v := b.take(Interrupt); len(v) != 0 {
		t.Errorf("vectors %+v with no cause left", v)
	}
}

// Write permissions of the mailboxes (spec/hardware.md 3).
func TestMailboxRights(t *testing.T) {
	rapf := mailbox.RAPF{Transaction: 1, Sequence: 1, Claimed: strange}.Encode()
	bell := mailbox.Doorbell{Channel: 2*64 + 1}.Encode()
	for _, tt := range []struct {
		name  string
		src   device.NodeID
		iface uint8
		pdid  device.PDID
		box   uint8
		word  uint64
		taken bool
		count device.Counter
	}{
		{"acknowledgement forged by a packetizer", 1, 20, ownPDID, 0, mailbox.Ack{Transaction: 1}.Encode(), false, device.MboxRefused},
		{"RAPF from any node", 1, 20, strange, 1, rapf, true, device.RAPFStale},
		{"doorbell from another node", 1, 20, ownPDID, 1, bell, false, device.MboxRefused},
		{"acknowledgement in mailbox 1", 1, 20, ownPDID, 1, 0, false, device.MboxRefused},
		{"read request in mailbox 1", 1, 20, ownPDID, 1, 1, false, device.MboxRefused},
		{"RAPF in mailbox 2", 1, 20, ownPDID, 2, rapf, false, device.MboxRefused},
		{"RAPF with an invalid ID", 1, 20, ownPDID, 1, mailbox.RAPF{Transaction: 1024}.Encode(), true, device.MsgDropped},
		{"driver's mailbox, from a driver", 1, 3, strange, 3, 42, true, device.RXPackets},
		{"driver's mailbox, from a process", 1, 16, ownPDID, 3, 42, false, device.MboxRefused},
		{"process's mailbox, own domain", 1, 20, ownPDID, 18, 42, true, device.RXPackets},
		{"process's mailbox, admitted domain", 1, 20, peerPDID, 18, 42, true, device.RXPackets},
		{"process's mailbox, an R5", 1, 0, 0, 18, 42, true, device.RXPackets},
		{"process's mailbox, a forged refusal", 1, 0, 0, 18, mailbox.Refusal{Number: 7}.Encode(), true, device.MsgDropped},
		{"process's mailbox, a pfd", 1, 15, device.PDIDDriver, 18, 42, false, device.MboxRefused},
		{"process's mailbox, a domain that is not admitted", 1, 20, strange, 18, 42, false, device.MboxRefused},
		{"mailbox without a domain", 1, 20, ownPDID, 19, 42, false, device.MboxRefused},
		{"mailbox 64", 1, 20, ownPDID, 64, 42, false, device.MboxRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			f := &wire.Frame{MessageLen: 1}
			f.Header = wire.Header{Kind: wire.Message, Epoch: 9, SrcNode: tt.src, SrcInterface: tt.iface, SrcPDID: tt.pdid, DstNode: 5, DstMailbox: tt.box, DstGeneration: ownGen}
			f.Message[0] = tt.word
			before := b.count(tt.count)
			b.step(Event{Kind: FrameArrived, Frame: f})
			if b.count(tt.count) == before {
				t.Errorf("%v did not count", tt.count)
			}
			refused := len(b.take(Transmit)) == 1
			if refused == tt.taken {
				t.Errorf("refused: %v, want %v", refused, !tt.taken)
			}
		})
	}
}

func TestMailboxDepth(t *testing.T) {
	b := newBench(t)
	for i := range device.MailboxDepth + 1 {
		f := &wire.Frame{MessageLen: 2}
		f.Header = wire.Header{Kind: wire.Message, SrcNode: 1, SrcInterface: 3, SrcPDID: strange, DstNode: 5, DstMailbox: 4}
		f.Message[0], f.Message[1] = uint64(i), uint64(i)<<32
		b.step(Event{Kind: FrameArrived, Frame: f})
	}
	if got := len(b.take(Transmit)); got != 1 {
		t.Errorf("%d refusals, want one, of the 65th", got)
	}
	page := uint32(4 * device.PageSize)
	if s := b.n.Load(device.MBOX, page+device.MboxStatus, 8); s != 64|1<<16 {
		t.Errorf("STATUS %#x", s)
	}
	for i := range uint64(device.MailboxDepth) {
		if s := mailbox.DecodeSource(b.n.Load(device.MBOX, page+device.MboxSource, 8)); s.Node != 1 || s.Interface != 3 || s.PDID != strange || s.Words != 2 {
			t.Fatalf("message %d: source %+v", i, s)
		}
		if x, y := b.n.Load(device.MBOX, page, 8), b.n.Load(device.MBOX, page, 8); x != i || y != i<<32 {
			t.Fatalf("message %d reads %#x %#x", i, x, y)
		}
	}
	if v := b.n.Load(device.MBOX, page, 8); v != 0xdeadbeefdeadbeef {
		t.Errorf("an empty mailbox reads %#x", v)
	}
}

// A full mailbox of a process takes 64 answers of firmware more, and no message of a process.
func TestMailboxLeavesRoomForAnswers(t *testing.T) {
	b := newBench(t)
	send := func() uint8 {
		b.step(Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(5, 18, ownGen), N: 1})
		return b.n.PacketizerStatus(18, 0)
	}
	for i := range device.MailboxDepth {
		if s := send(); s != device.PktzFree {
			t.Fatalf("message %d: STATUS %d", i, s)
		}
	}
	for i := range device.MailboxDepth + 1 {
		if s := send(); s != device.PktzRefused {
			t.Fatalf("message %d more: STATUS %d", i, s)
		}
		f := &wire.Frame{MessageLen: 1, Header: wire.Header{
			Kind: wire.Ack, SrcNode: 1, DstNode: 5, DstMailbox: 18, DstGeneration: ownGen, Remaining: 1<<16 | 7,
		}}
		refused := b.count(device.MboxRefused)
		b.step(Event{Kind: FrameArrived, Frame: f})
		if lost := b.count(device.MboxRefused) != refused; lost != (i == device.MailboxDepth) {
			t.Fatalf("answer %d: lost %v", i, lost)
		}
	}
	if s := b.n.Load(device.MBOX, 18*device.PageSize+device.MboxStatus, 8); s != 2*device.MailboxDepth|1<<16 {
		t.Errorf("STATUS %#x", s)
	}
}

// Messages are private to a process: they are dropped when its mailbox gets another reader.
func TestMailboxOfTheNextDomain(t *testing.T) {
	b := newBench(t)
	box := device.MailboxProcess + 2
	cfg := device.PLMboxCfg + 8*uint32(box)
	put := func() {
		f := &wire.Frame{MessageLen: 1}
		f.Header = wire.Header{Kind: wire.Message, SrcNode: 1, SrcInterface: 20, SrcPDID: ownPDID, DstNode: 5, DstMailbox: uint8(box), DstGeneration: ownGen}
		b.step(Event{Kind: FrameArrived, Frame: f})
	}
	for range device.MailboxDepth + 1 {
		put()
	}
	b.write64(device.PL, cfg, ownPDID|device.CfgEnable) // the same value again
	if _, _, ok := b.n.PeekMail(box); !ok {
		t.Fatal("the reader's own messages are lost")
	}
	b.write64(device.PL, cfg, 0)
	b.write64(device.PL, cfg, strange|device.CfgEnable)
	status := b.n.Load(device.MBOX, uint32(box)*device.PageSize+device.MboxStatus, 8)
	if source, _, ok := b.n.PeekMail(box); ok || status != 0 {
		t.Errorf("the next domain finds a message from %+v, STATUS %#x", source, status)
	}
}

// Messages carry their packetizer's PKTZ_CFG, whatever the sender wrote.
func TestPacketizerIsWired(t *testing.T) {
	b := newBench(t)
	b.write64(device.PL, device.PLPktzCfg+8*40, packetizer.Config{Node: 5, Interface: 40, Enable: true}.Encode())
	forged := mailbox.RAPF{PDID: strange, Transaction: 9, Sequence: 4, Claimed: ownPDID}
	b.step(Event{Kind: MessageSent, Interface: 18, Channel: 1, Destination: packetizer.Destination(1, 1, 0), Words: [8]uint64{forged.Encode()}, N: 1})
	sent := b.take(Transmit)
	if len(sent) != 1 {
		t.Fatalf("%d frames", len(sent))
	}
	f := sent[0].Frame
	m, err := mailbox.DecodeRAPF(f.Message[0])
	if err != nil || m.PDID != ownPDID || f.SrcPDID != ownPDID || f.SrcInterface != 18 || f.SrcNode != 5 {
		t.Errorf("sent %+v in %+v; want PDID %#x everywhere", m, f.Header, ownPDID)
	}
	for name, ev := range map[string]Event{
		"no words":             {Interface: 18, Destination: packetizer.Destination(1, 1, 0), N: 0},
		"nine words":           {Interface: 18, Destination: packetizer.Destination(1, 1, 0), N: 9},
		"mailbox 0":            {Interface: 18, Destination: packetizer.Destination(1, 0, 0), N: 1},
		"mailbox 64":           {Interface: 18, Destination: packetizer.Destination(1, 64, 0), N: 1},
		"packetizer not wired": {Interface: 19, Destination: packetizer.Destination(1, 1, 0), N: 1},
		"an R5's PDID":         {Interface: 40, Destination: packetizer.Destination(1, 1, 0), N: 1},
	} {
		ev.Kind = MessageSent
		b.step(ev)
		if got := b.take(Transmit); len(got) != 0 {
			t.Errorf("%s: a frame was sent", name)
		}
		if got := b.n.PacketizerStatus(ev.Interface, 0); got != device.PktzRefused {
			t.Errorf("%s: STATUS %d, want refused", name, got)
		}
	}
}

func doorbell(slot, ch int, size uint32) Event {
	d := device.Descriptor{Src: 0x10000, Dst: 0x20000, Size: size, DstNode: 1, DstGeneration: ownGen}
	return Event{Kind: DoorbellRung, Slot: slot, Channel: ch, Words: d.Words()}
}

// A transfer announced by both the doorbell word and a message starts once (spec/firmware.md,
// Loop).
func TestAnnouncedTwiceStartsOnce(t *testing.T) {
	b := newBench(t)
	b.step(doorbell(2, 3, 64))
	b.step(Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(5, 1, 0),
		Words: [8]uint64{mailbox.Doorbell{Channel: 2*64 + 3}.Encode()}, N: 1})
	if got := b.count(device.TXBlocks); got != 1 {
		t.Errorf("%d blocks issued, want 1", got)
	}
	if got := b.count(device.DoorbellDenied); got != 0 {
		t.Errorf("%d doorbells denied", got)
	}
}

// Without the fast path the word is handled like a mailbox message, whether a process or a driver
// (through window btcm) writes it.
func TestDoorbellWithoutFastPath(t *testing.T) {
	for _, off := range []bool{false, true} {
		for name, ring := range map[string]func(*bench){
			"process": func(b *bench) { b.step(doorbell(2, 3, 64)) },
			"btcm": func(b *bench) {
				d := doorbell(2, 3, 64)
				b.step(Event{Kind: DescriptorCopied, Slot: 2, Channel: 3, Words: d.Words})
				b.write64(device.BTCM, device.BTCMDoorbells+2*device.PageSize, 3+1)
			},
		} {
			pool := new(wire.Pool)
			frame := pool.Frame()
			pool.Put(frame)
			// The firmware checks the route while it handles the doorbell: at that time the frame
			// of a message is not in the pool.
			message := false
			route := func(device.NodeID) bool {
				f := pool.Frame()
				message = f != frame
				pool.Put(f)
				return true
			}
			b := newBenchOf(t, Config{ID: 5, VABits: 48, SVA: true, Epoch: 9, Pool: pool, Route: route, Firmware: r5.Options{NoFastPath: off}})
			ring(b)
			if message != off || b.count(device.TXBlocks) != 1 {
				t.Errorf("%s, fast path off %v: by message %v, %d blocks issued", name, off, message, b.count(device.TXBlocks))
			}
			ring(b)
			if b.count(device.TXBlocks) != 1 {
				t.Errorf("%s: announced twice starts twice", name)
			}
		}
	}
}

func TestDoorbellsThatAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		ev   Event
		want device.Counter
	}{
		"another slot's":             {doorbell(3, 0, 64), device.DoorbellDenied},
		"a channel of the firmware":  {doorbell(2, 32, 64), device.DoorbellDenied},
		"a channel past the page":    {doorbell(2, 64, 64), device.DoorbellDenied},
		"another slot's, by message": {Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(5, 1, 0), Words: [8]uint64{mailbox.Doorbell{Channel: 3 * 64}.Encode()}, N: 1}, device.DoorbellDenied},
		"firmware's, by message":     {Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(5, 1, 0), Words: [8]uint64{mailbox.Doorbell{Channel: 2*64 + 40}.Encode()}, N: 1}, device.MsgDropped},
	} {
		b := newBench(t)
		b.step(tt.ev)
		if b.count(tt.want) != 1 || b.count(device.TXBlocks) != 0 {
			t.Errorf("%s: %v is %d, %d blocks issued", name, tt.want, b.count(tt.want), b.count(device.TXBlocks))
		}
	}
}

// Writes to the descriptor after the doorbell have no effect.
func TestDescriptorIsTakenOnce(t *testing.T) {
	b := newBench(t)
	b.step(doorbell(2, 0, 40000))
	b.write64(device.BTCM, device.BTCMDescriptors+2*device.PageSize+device.DescDst, 0x999000)
	b.write32(device.BTCM, device.BTCMDescriptors+2*device.PageSize+device.DescSize, 1)
	for range 3 {
		for _, w := range b.take(Walk) {
			b.step(Event{Kind: Walked, Access: w.Access.ID})
		}
		for _, m := range b.take(Move) {
			b.step(Event{Kind: Moved, Access: m.Access.ID, OK: true})
		}
		for _, f := range b.take(Transmit) {
			if f.Frame.VA < 0x20000 || f.Frame.VA > 0x20000+40000 {
				t.Errorf("a block for %v", f.Frame.VA)
			}
			b.step(Event{Kind: FrameArrived, Frame: &wire.Frame{Header: wire.Header{Kind: wire.Ack, Epoch: 9, SrcNode: 1, DstNode: 5, ID: f.Frame.ID, Seq: f.Frame.Seq}}})
		}
	}
	if got := b.n.Channel(2, 0); got.Issued != 40000 {
		t.Errorf("%d bytes issued, want 40000", got.Issued)
	}
}

// CTRL.reset drops everything in progress, starts a new epoch and clears the configuration;
// counters keep their values.
func TestReset(t *testing.T) {
	b := newBench(t)
	b.step(doorbell(2, 0, 64))
	walk := b.take(Walk)[0].Access
	b.step(Event{Kind: FrameArrived, Frame: data(1, 0x1000, 64)})
	rx := b.take(Walk)[0].Access
	blocks := b.count(device.TXBlocks)
	b.write32(device.PL, device.PLCtrl, device.CtrlEnable|device.CtrlReset)
	if got := b.n.Load(device.PL, device.PLCtrl, 4); got != device.CtrlEnable {
		t.Errorf("CTRL reads %#x: reset clears itself", got)
	}
	if b.n.Load(device.PL, device.PLPDCfg+16, 8) != 0 || b.n.Load(device.PL, device.PLPktzCfg+16, 8) != 0 {
		t.Error("configuration survives a reset")
	}
	if b.count(device.TXBlocks) != blocks {
		t.Error("a counter is lost in a reset")
	}
	b.out = nil
	// Late answers of accesses that were in flight have no effect.
	b.step(Event{Kind: Walked, Access: walk.ID})
	b.step(Event{Kind: Walked, Access: rx.ID, Absent: 1})
	if len(b.out) != 0 || b.n.InFlight(2) != 0 {
		t.Errorf("after the reset: %+v, %d in flight", b.out, b.n.InFlight(2))
	}
	// An acknowledgement of the former life carries the former epoch.
	b.step(Event{Kind: FrameArrived, Frame: &wire.Frame{Header: wire.Header{Kind: wire.Ack, Epoch: 9, SrcNode: 1, DstNode: 5}}})
	if b.count(device.AckStale) != 1 {
		t.Error("an acknowledgement of another epoch did not count as stale")
	}
}

func TestDisabledNode(t *testing.T) {
	b := newBench(t)
	b.write32(device.PL, device.PLCtrl, 0)
	b.step(Event{Kind: FrameArrived, Frame: data(1, 0x1000, 64)})
	b.step(doorbell(2, 0, 64))
	b.step(Event{Kind: MessageSent, Interface: 18, Destination: packetizer.Destination(1, 1, 0), N: 1})
	if len(b.out) != 0 {
		t.Errorf("a disabled node emits %+v", b.out)
	}
}

// PeekMail returns the head message of mailbox m without taking it; false if it is empty.
func (n *Node) PeekMail(m int) (mailbox.Source, [device.PktzMaxWords]uint64, bool) {
	b := &n.boxes[m]
	if b.level == 0 {
		return mailbox.Source{}, [device.PktzMaxWords]uint64{}, false
	}
	return b.ring[b.head].source, b.ring[b.head].words, true
}

// InFlight returns the number of a slot's memory accesses whose answers are outstanding.
func (n *Node) InFlight(slot int) int { return n.dma.InFlight(slot) }
