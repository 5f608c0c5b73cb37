package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/wire"
)

// The trees and the thread of these tests: a thread of interface 40 in slot 2 of node 5.
const (
	tree      = 0x800005
	otherTree = 0x840006
	iface     = 40
)

// threaded returns a node with a thread and a page of its tree.
func threaded(t *testing.T) *bench {
	t.Helper()
	b := newBenchOf(t, Config{ID: 5, VABits: 48, SVA: true, Epoch: 9, GSAS: true})
	b.thread(iface, tree)
	b.write32(device.PL, device.PLGSASCtrl, device.GSASEnable)
	b.write64(device.PL, device.PLGSASPage, device.GSASRun(0, 1))
	b.write64(device.PL, device.PLGSASEntry, device.GSASEntry{Protection: tree, Present: true, Valid: true}.Encode())
	return b
}

// thread sets an interface up for a thread of slot 2, as a driver does.
func (b *bench) thread(n int, protection uint32) {
	b.write64(device.PL, device.PLPktzProt+8*uint32(n), device.PktzProt(protection, 2))
	b.write64(device.PL, device.PLMboxCfg+8*uint32(n), device.ThreadMboxCfg(ownPDID, protection))
	b.write64(device.PL, device.PLPktzCfg+8*uint32(n), packetizer.Config{PDID: ownPDID, Node: 5, Interface: uint8(n), GSAS: true, Enable: true}.Encode())
}

// ask sends words from an interface, and returns STATUS.
func (b *bench) ask(n int, node device.NodeID, box uint8, number uint16, words ...uint64) uint8 {
	ev := Event{Kind: MessageSent, Interface: n, Channel: 1, Destination: packetizer.Destination(node, box, 0), N: len(words), Number: number}
	copy(ev.Words[:], words)
	b.step(ev)
	return b.n.PacketizerStatus(n, 1)
}

// fetchAdd are the words of a request, whose wired bits claim to be another thread's.
func fetchAdd() []uint64 {
	return []uint64{uint64(atomics.FetchAdd)<<56 | 0xffffffffffff, uint64(atomics.At(5, 8)), 1}
}

// A thread's request on its own node, from SEND to the answer in its mailbox.
func TestThreadAsks(t *testing.T) {
	b := threaded(t)
	if s := b.ask(iface, 5, device.MailboxGSAS, 0x1043, fetchAdd()...); s != device.PktzFree {
		t.Fatalf("STATUS %d", s)
	}
	out := b.take(Atomic)
	if len(out) != 1 {
		t.Fatalf("%+v", b.out)
	}
	a := out[0].Atomic
	if a.Thread != atomics.ThreadOf(5, iface) || a.Protection != tree || a.Tag != atomics.TagOf(1, 3) || a.Back != 8 || a.Args[0] != 1 {
		t.Errorf("%+v", a)
	}
	b.step(Event{Kind: AtomicDone, Access: a.ID, Words: [8]uint64{41}, N: 1})
	if got := b.take(MailArrived); len(got) != 1 || got[0].Interface != iface {
		t.Fatalf("%+v", got)
	}
	source, words, ok := b.n.TakeMail(iface)
	if !ok || source.PDID != 0 || source.Node != 5 || source.Words != 2 || words[0] != 0x0d_800005_001043 || words[1] != 41 {
		t.Errorf("%+v %016x", source, words)
	}
	if s := b.n.GSAS(); s.Begun != 1 || s.InFlight != 0 || s.Pages != 1 {
		t.Errorf("%+v", s)
	}
}

// A request from another node, and its answer, which means the thread's generation.
func TestThreadAsksAnotherNode(t *testing.T) {
	b := threaded(t)
	b.ask(iface, 7, device.MailboxGSAS, 2, fetchAdd()...)
	sent := b.take(Transmit)
	if len(sent) != 1 {
		t.Fatalf("%+v", sent)
	}
	f := sent[0].Frame
	if f.SrcPDID != ownPDID || f.SrcGeneration != ownGen || f.DstMailbox != device.MailboxGSAS || f.Remaining != 2 || f.Message[0]>>56 != 0x10 || f.Message[0]<<16>>40 != tree {
		t.Errorf("%+v", f)
	}
	// The same frame with the nodes exchanged: a thread of node 7 asks this one.
	g := *f
	g.SrcNode, g.DstNode = 7, 5
	g.Message[0] = g.Message[0]&^0x3ffff | 7
	b.step(Event{Kind: FrameArrived, Frame: &g})
	out := b.take(Atomic)
	if len(out) != 1 {
		t.Fatalf("%+v", b.out)
	}
	b.step(Event{Kind: AtomicDone, Access: out[0].Atomic.ID, Status: atomics.NoMemory})
	answers := b.take(Transmit)
	if len(answers) != 1 {
		t.Fatalf("%+v", answers)
	}
	if f := answers[0].Frame; f.DstNode != 7 || f.DstMailbox != iface || f.DstGeneration != ownGen || f.SrcPDID != 0 || f.MessageLen != 1 || f.Message[0]>>56 != 1 {
		t.Errorf("%+v", f)
	}
}

// Where threads may send, and which senders a thread's mailbox admits.
func TestThreadMailboxes(t *testing.T) {
	b := threaded(t)
	b.thread(41, tree)
	b.thread(42, otherTree)
	b.write64(device.PL, device.PLPktzCfg+8*43, packetizer.Config{PDID: ownPDID, Node: 5, Interface: 43, Enable: true}.Encode())
	b.write64(device.PL, device.PLPktzCfg+8*19, packetizer.Config{PDID: ownPDID, Node: 5, Interface: 19, GSAS: true, Enable: true}.Encode())
	for _, c := range []struct {
		what string
		from int
		box  uint8
		ok   bool
	}{
		{"a thread to the unit", iface, device.MailboxGSAS, true},
		{"a thread to one of its tree", iface, 41, true},
		{"to one of another tree", iface, 42, false},
		{"to a mailbox that is off", iface, 44, false},
		{"to its process", iface, 18, false},
		{"to the firmware", iface, device.MailboxRequest, false},
		{"to the firmware, to read", iface, device.MailboxRead, false},
		{"to the driver", iface, device.MailboxDriver, false},
		{"a process to the unit", 18, device.MailboxGSAS, false},
		{"a process to a thread", 18, iface, false},
		{"the driver to the unit", 2, device.MailboxGSAS, false},
		{"form 0 of a thread's interface", 43, device.MailboxGSAS, false},
		{"form 1 of a process's", 19, device.MailboxGSAS, false},
	} {
		b.out = nil
		s := b.ask(c.from, 5, c.box, 9, fetchAdd()...)
		if (s == device.PktzFree) != c.ok {
			t.Errorf("%s: STATUS %d", c.what, s)
		}
		got := 0
		for _, a := range b.out {
			if a.Kind == Atomic || a.Kind == MailArrived {
				got++
			}
		}
		if (got == 1) != c.ok {
			t.Errorf("%s: %d messages arrived", c.what, got)
		}
	}
	// From another node, the frames of other sources.
	for _, c := range []struct {
		what string
		f    wire.Header
		word uint64
		ok   bool
	}{
		{"a unit", wire.Header{DstGeneration: ownGen}, tree << 24, true},
		{"a unit, to the former thread", wire.Header{DstGeneration: ownGen + 1}, tree << 24, false},
		{"a unit, to the former thread of another tree", wire.Header{DstGeneration: ownGen}, otherTree << 24, false},
		{"a unit, without a generation", wire.Header{}, tree << 24, false},
		{"a thread of the tree", wire.Header{SrcPDID: 9, SrcInterface: 50}, tree << 24, true},
		{"a thread of the tree, to the former one", wire.Header{SrcPDID: 9, SrcInterface: 50, DstGeneration: ownGen + 1}, tree << 24, false},
		{"a thread of another", wire.Header{SrcPDID: ownPDID, SrcInterface: 50}, otherTree << 24, false},
		{"a process with the words of a thread", wire.Header{SrcPDID: ownPDID, SrcInterface: 18}, tree << 24, false},
	} {
		c.f.Kind, c.f.SrcNode, c.f.DstNode, c.f.DstMailbox = wire.Message, 7, 5, iface
		f := &wire.Frame{Header: c.f, MessageLen: 1}
		f.Message[0] = c.word
		b.out = nil
		b.step(Event{Kind: FrameArrived, Frame: f})
		if got := len(b.take(MailArrived)); (got == 1) != c.ok {
			t.Errorf("%s: %d messages arrived", c.what, got)
		}
	}
}

// A new domain in the slot ends the threads of the former one.
func TestThreadsEndWithTheirSlot(t *testing.T) {
	b := threaded(t)
	b.ask(iface, 5, device.MailboxGSAS, 1, fetchAdd()...)
	a := b.take(Atomic)[0].Atomic
	b.write64(device.PL, device.PLPDCfg+8*3, device.PDCfg(ownPDID+1, ownGen)) // another slot
	if b.n.Load(device.PL, device.PLPktzCfg+8*iface, 8) == 0 {
		t.Fatal("a thread ends with another slot")
	}
	b.write64(device.PL, device.PLPDCfg+8*2, device.PDCfg(ownPDID, ownGen+1))
	for _, reg := range []uint32{device.PLPktzCfg, device.PLMboxCfg} {
		if v := b.n.Load(device.PL, reg+8*iface, 8); v != 0 {
			t.Errorf("register 0x%x: %x", reg, v)
		}
	}
	if s := b.ask(iface, 5, device.MailboxGSAS, 2, fetchAdd()...); s != device.PktzRefused {
		t.Errorf("STATUS %d", s)
	}
	b.thread(iface, tree) // of the new domain
	b.step(Event{Kind: AtomicDone, Access: a.ID, Words: [8]uint64{41}, N: 1})
	if got := b.take(MailArrived); len(got) != 0 {
		t.Error("the new thread gets the answer of the former one")
	}
	if s := b.ask(iface, 5, device.MailboxGSAS, 1, fetchAdd()...); s != device.PktzFree || len(b.take(Atomic)) != 1 {
		t.Errorf("STATUS %d: the new thread's number 1 is taken for the former one's", s)
	}
}

// A page that is absent raises vector 1, until its driver has read GSAS_WANT.
func TestWantedPage(t *testing.T) {
	b := threaded(t)
	b.write64(device.PL, device.PLGSASEntry, device.GSASEntry{Protection: tree, Valid: true}.Encode())
	b.out = nil
	b.ask(iface, 5, device.MailboxGSAS, 1, fetchAdd()...)
	if v := b.take(Interrupt); len(v) != 1 || v[0].Vector != device.VectorFIFO {
		t.Errorf("%+v", v)
	}
	if page := b.n.Load(device.PL, device.PLGSASWant, 8); page != 0 {
		t.Errorf("page %x is wanted", page)
	}
	b.write32(device.PL, device.PLIRQStatus, 1<<device.VectorFIFO)
	if v := b.take(Interrupt); len(v) != 0 {
		t.Errorf("%+v", v)
	}
	b.write64(device.PL, device.PLGSASEntry, device.GSASEntry{Protection: tree, Present: true, Valid: true}.Encode())
	if len(b.take(Atomic)) != 1 {
		t.Error("the request does not go on")
	}
}

// Without CAPS[31] there are no threads, and mailbox 4 is one of the driver's.
func TestNodeWithoutThreads(t *testing.T) {
	b := newBench(t)
	b.thread(iface, tree)
	if b.n.Load(device.PL, device.PLPktzProt+8*iface, 8) != 0 || b.n.Load(device.PL, device.PLGSASWant, 8) != 0 {
		t.Error("there are registers of threads")
	}
	if s := b.ask(iface, 5, device.MailboxGSAS, 1, fetchAdd()...); s != device.PktzRefused {
		t.Errorf("STATUS %d", s)
	}
	if s := b.ask(2, 5, device.MailboxGSAS, 1, 7); s != device.PktzFree {
		t.Errorf("the driver's message has STATUS %d", s)
	}
	b.step(Event{Kind: AtomicDone, Access: 1})
	if b.n.GSAS().Begun != 0 {
		t.Error("a node without a unit has begun an operation")
	}
}
