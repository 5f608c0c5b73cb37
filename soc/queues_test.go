package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

const (
	testEvents   = 0x10000 // DMA address of the event queue, and of the command queue
	testCommands = 0x20000
)

// queued is a bench that uses its queues: it performs their accesses.
type queued struct {
	*bench
	mem     [0x30000]byte
	broken  bool // bus mastering is off
	vectors []uint8
	read    uint32 // events
	sent    uint32 // commands
	rest    []Action
}

func newQueued(b *bench) *queued {
	q := &queued{bench: b}
	b.out = nil
	for _, w := range []struct{ base, at uint32 }{{device.PLEventQueue, testEvents}, {device.PLCommandQueue, testCommands}} {
		b.write64(device.PL, w.base+device.QueueBase, uint64(w.at))
		b.write32(device.PL, w.base+device.QueueSize, 4)
		b.write32(device.PL, w.base+device.QueueCtrl, device.QueueTurnOn)
	}
	q.drive()
	return q
}

// drive performs the accesses of the queues; other actions are kept in rest.
func (q *queued) drive() {
	for len(q.out) > 0 {
		a := q.out[0]
		q.out = q.out[1:]
		switch a.Kind {
		case QueueAccess:
			ok := !q.broken && a.Queue.Addr < uint64(len(q.mem))
			if ok && a.Queue.Write {
				copy(q.mem[a.Queue.Addr:], a.Queue.Data)
			} else if ok {
				copy(a.Queue.Data, q.mem[a.Queue.Addr:])
			}
			q.step(Event{Kind: QueueAccessed, Access: a.Queue.ID, OK: ok})
		case Interrupt:
			q.vectors = append(q.vectors, a.Vector)
		default:
			q.rest = append(q.rest, a)
		}
	}
}

func (q *queued) events() (out []device.Event) {
	q.t.Helper()
	q.drive()
	for {
		e := device.QueueEntryOf(q.mem[testEvents+q.read%16*device.QueueEntrySize:])
		if e[0]&1 != uint64(q.read/16%2^1) {
			return out
		}
		ev, err := device.DecodeEvent(&e)
		if err != nil {
			q.t.Fatal(err)
		}
		out = append(out, ev)
		q.read++
		q.write32(device.PL, device.PLEventQueue+device.QueueCons, uint64(q.read%32))
		q.drive()
	}
}

func (q *queued) one() device.Event {
	q.t.Helper()
	e := q.events()
	if len(e) != 1 {
		q.t.Fatalf("events %+v, want one", e)
	}
	return e[0]
}

func (q *queued) command(c device.Command) {
	e := c.Encode()
	e[0] |= uint64(q.sent/16%2 ^ 1)
	e.Put(q.mem[testCommands+q.sent%16*device.QueueEntrySize:])
	q.sent++
	q.write32(device.PL, device.PLCommandQueue+device.QueueDoorbell, 1)
	q.drive()
}

func (q *queued) get(off uint32) uint64 { return q.n.Load(device.PL, off, 4) }

// fault makes an access of slot 2 fault on an absent page.
func (q *queued) fault(va device.VA) {
	q.t.Helper()
	q.write32(device.SMMU, device.Bank(2, device.FSRRESTORE), device.FSRTF)
	q.write64(device.SMMU, device.Bank(2, device.FAR), uint64(va))
	q.drive()
}

// A fault of a transfer is an event with all the data of the registers, and the registers are
// free again.
func TestQueueFault(t *testing.T) {
	p := newPair(t, Config{Queues: true})
	q := newQueued(p.to)
	p.absent = 1
	f := p.ring(0x20000, 0, ownPDID)
	tr, seq := f.ID, f.Seq
	p.to.step(Event{Kind: FrameArrived, Frame: f})
	q.drive()
	for _, a := range q.rest {
		if a.Kind == Walk {
			q.step(Event{Kind: Walked, Access: a.Access.ID, Absent: 1})
		}
	}
	got := q.events()
	if len(got) != 2 || got[0].Kind != device.EventFault || got[1].Kind != device.EventBank {
		t.Fatalf("events %+v", got)
	}
	e, ok := device.DecodeFaultEntry(got[0].Words)
	want := device.FaultEntry{Source: initiatorID, Transaction: tr, Sequence: seq, PDID: ownPDID, Page: 0x20, Response: device.ResponseSlaveError}
	if !ok || e != want || got[0].Ext != 4096 || got[0].TX || got[0].Lost {
		t.Errorf("entry %+v, EXT %d; want %+v, 4096", e, got[0].Ext, want)
	}
	if b := got[1]; b.Index != 2 || b.Status != device.FSRTF || b.Syndrome != device.FSYNR0WNR || b.Address != 0x20000 {
		t.Errorf("bank fault %+v", b)
	}
	if s := q.get(device.PLRXFIFOStatus); s != device.FIFOEmpty {
		t.Errorf("RXFIFO_STATUS %#x after it was reported", s)
	}
	if v := q.n.Load(device.SMMU, device.Bank(2, device.FSR), 4); v != 0 || q.get(device.PLIRQStatus) != 0 {
		t.Errorf("FSR %#x, IRQ_STATUS %#x", v, q.get(device.PLIRQStatus))
	}
	for _, v := range q.vectors {
		if v != device.VectorFIFO {
			t.Errorf("vector %d", v)
		}
	}
	// The answer is sent through the command queue.
	before := p.to.n.Count(device.TXPackets)
	q.command(device.Command{
		Kind: device.CommandSend, Index: 2, Count: 1, Destination: packetizer.Destination(initiatorID, device.MailboxRequest, 0),
		Words: [6]uint64{mailbox.RAPF{PDID: ownPDID, Claimed: ownPDID, Transaction: tr, Sequence: seq}.Encode()},
	})
	if n := p.to.n.Count(device.TXPackets) - before; n != 1 {
		t.Errorf("%d messages sent", n)
	}
	if e := q.events(); len(e) != 0 {
		t.Errorf("events %+v for an accepted message", e)
	}
}

// The effects of commands, and the events that they cause.
func TestQueueCommands(t *testing.T) {
	q := newQueued(newBenchOf(t, Config{ID: 5, VABits: 48, Epoch: 9, Queues: true}))
	q.command(device.Command{Kind: device.CommandNop, Value: 9})
	if e := q.one(); e.Kind != device.EventNop || e.Cookie != 9 || e.Commands != 1 {
		t.Errorf("NOP causes %+v", e)
	}
	// Mailbox 20 has no reader here.
	q.command(device.Command{Kind: device.CommandSend, Index: 2, Channel: 3, Count: 1, Destination: packetizer.Destination(5, 20, 0)})
	if e := q.one(); e.Kind != device.EventRefused || e.Index != 2 || e.Channel != 3 {
		t.Errorf("a refused message causes %+v", e)
	}
	q.command(device.Command{Kind: device.CommandSend, Index: 2, Count: 1, Destination: packetizer.Destination(5, 3, 0), Words: [6]uint64{0x77}})
	if e := q.one(); e.Kind != device.EventMail || e.Index != 3 {
		t.Errorf("a message in mailbox 3 causes %+v", e)
	}
	if src, words, ok := q.n.PeekMail(3); !ok || src.PDID != ownPDID || words[0]&^(0xffff<<2) != 0x77&^(0xffff<<2) {
		t.Errorf("mailbox 3 has %+v %x", src, words)
	}
	// A transfer that fails at once, because its descriptor has size 0.
	d := device.Descriptor{}
	for i, w := range d.Words() {
		q.write64(device.BTCM, uint32(device.PageSize*2+8*i), w)
	}
	q.command(device.Command{Kind: device.CommandDoorbell, Index: 2, Channel: 0})
	if e := q.one(); e.Kind != device.EventDone || e.Index != 2 || e.Status != device.DoneFailed || e.Code != device.StatusDecode {
		t.Errorf("a completed transfer causes %+v", e)
	}
	q.command(device.Command{Kind: device.CommandInvalidate, Index: 2, Pages: 1 << 60})
	q.command(device.Command{Kind: device.CommandInvalidate, Index: 2, Page: 7, Pages: 3})
	q.command(device.Command{Kind: device.CommandSync, Index: 2, Address: 0x2fff8, Value: 0x5a})
	if e := q.events(); len(e) != 0 || q.mem[0x2fff8] != 0x5a {
		t.Errorf("SYNC stored %#x, events %+v", q.mem[0x2fff8], e)
	}
	if q.get(device.PLIRQStatus) != 0 {
		t.Errorf("IRQ_STATUS %#x", q.get(device.PLIRQStatus))
	}
}

// Messages to a process go into events, each once, in their order and with the domain's generation. One
// of more words than an event has stays in the mailbox, as do those behind it, and the driver is told.
func TestQueueMessages(t *testing.T) {
	q := newQueued(newBenchOf(t, Config{ID: 5, VABits: 48, Epoch: 9, Queues: true}))
	const box = device.MailboxProcess + 2
	cfg := q.n.Load(device.PL, device.PLMboxCfg+8*box, 8)
	own := q.n.wired(box)
	send := func(count uint8, number uint16, first uint64) {
		w := [device.EntryWords]uint64{first << 24, 2, 3, 4, 5, 6}
		if count > device.EntryWords {
			q.command(device.Command{Kind: device.CommandPayload, Index: box, Channel: 1, Words: [6]uint64{7, 8}})
		}
		q.command(device.Command{
			Kind: device.CommandSend, Index: box, Channel: 1, Count: count, Number: number,
			Destination: packetizer.Destination(5, box, own), Words: w,
		})
	}
	message := func(e device.Event, count int, first uint64) {
		t.Helper()
		src := mailbox.DecodeSource(e.Cookie)
		want := [device.EntryWords]uint64{first << 24, 2, 3, 4, 5, 6}
		clear(want[count:])
		if e.Message[0] &^= mailbox.WiredBits; e.Kind != device.EventMessage || e.Index != box || e.Generation != own&device.EventGenerationMask ||
			src.Node != 5 || src.Interface != box || src.PDID != ownPDID || src.Words != count || e.Message != want {
			t.Errorf("event %+v, source %+v; want %d words and %d", e, src, count, first)
		}
	}
	level := func() uint64 { return q.n.Load(device.MBOX, box*device.PageSize+device.MboxStatus, 8) & 0xffff }

	send(6, 1, 1)
	if e := q.one(); e.Kind != device.EventMail || level() != 1 {
		t.Errorf("a message to a mailbox without events causes %+v", e)
	}
	q.write64(device.PL, device.PLMboxCfg+8*box, cfg|device.MboxEvents) // does not empty the mailbox
	message(q.one(), 6, 1)
	for count := uint8(1); count <= device.EntryWords; count++ {
		send(count, 2, uint64(count))
		message(q.one(), int(count), uint64(count)) // the words that the packetizer had before are not sent
	}
	// A long one, and the messages behind it.
	send(8, 3, 10)
	if e := q.one(); e.Kind != device.EventMail || e.Index != box {
		t.Errorf("a message of 8 words causes %+v", e)
	}
	send(1, 4, 11)
	send(7, 5, 12)
	send(2, 6, 13)
	if e := q.events(); len(e) != 0 || level() != 4 {
		t.Errorf("%d messages wait; events %+v", level(), e)
	}
	read := func(count int) (words []uint64) {
		for range count {
			words = append(words, q.n.Load(device.MBOX, box*device.PageSize+device.MboxData, 8))
			if len(words) < count && len(q.events()) != 0 {
				t.Error("an event while a message is read")
			}
		}
		return words
	}
	if w := read(8); w[0]&^mailbox.WiredBits != 10<<24 || w[6] != 7 || w[7] != 8 {
		t.Errorf("read %x", w)
	}
	if q.n.Deadline() > q.now {
		t.Error("a message is read, and the node does not look for the next")
	}
	q.step(Event{Kind: Tick})
	e := q.events()
	if len(e) != 2 || e[1].Kind != device.EventMail || e[1].Index != box {
		t.Fatalf("after the long message: %+v", e)
	}
	message(e[0], 1, 11)
	if w := read(7); w[0]&^mailbox.WiredBits != 12<<24 || w[6] != 7 {
		t.Errorf("read %x", w)
	}
	q.step(Event{Kind: Tick})
	message(q.one(), 2, 13)
	if level() != 0 {
		t.Errorf("%d messages are left", level())
	}
	// A message that is refused at once is told by its number, as one that a far node refuses.
	q.command(device.Command{Kind: device.CommandSend, Index: box, Count: 1, Number: 77, Destination: packetizer.Destination(5, box, own+1)})
	r := q.one()
	if no, err := mailbox.DecodeRefusal(r.Message[0]); err != nil || no.Number != 77 || r.Kind != device.EventMessage || mailbox.DecodeSource(r.Cookie).PDID != device.PDIDFirmware {
		t.Errorf("a refused message causes %+v", r)
	}
	// While the events are not read, messages stay in the mailbox; none is lost.
	const many = 40
	for i := range uint64(many) {
		send(1, 9, 100+i)
	}
	for i := uint64(0); i < many; {
		for _, e := range q.events() {
			message(e, 1, 100+i)
			i++
		}
	}
	// Another domain's configuration empties the mailbox.
	q.broken = true
	send(1, 9, 1)
	q.write64(device.PL, device.PLMboxCfg+8*box, (cfg+1)|device.MboxEvents)
	if level() != 0 {
		t.Error("messages wait for another domain")
	}
}

// If the ring cannot be written, the registers report the events by their vectors, and nothing is
// lost. The same holds if bus mastering is off during a SYNC.
func TestQueueBroken(t *testing.T) {
	q := newQueued(newBenchOf(t, Config{ID: 5, VABits: 48, Epoch: 9, Queues: true}))
	q.broken = true
	q.fault(0x5000)
	const off = device.QueueErrAccess
	if s := q.get(device.PLEventQueue + device.QueueStatus); s != off {
		t.Errorf("EVTQ_STATUS %#x", s)
	}
	if v := q.n.Load(device.SMMU, device.Bank(2, device.FSR), 4); v != device.FSRTF || len(q.vectors) != 1 || q.vectors[0] != device.VectorFault {
		t.Errorf("FSR %#x, vectors %v", v, q.vectors)
	}
	q.command(device.Command{Kind: device.CommandSync, Index: 2, Address: 0x2fff8, Value: 0x5a})
	if s := q.get(device.PLCommandQueue + device.QueueStatus); s != off || q.mem[0x2fff8] != 0 {
		t.Errorf("CMDQ_STATUS %#x", s)
	}
	// The error holds vector 0 asserted until it is cleared.
	q.write32(device.SMMU, device.Bank(2, device.FSR), device.FSRTF)
	q.write32(device.PL, device.PLIRQStatus, 1)
	if q.get(device.PLIRQStatus) != 1 {
		t.Error("vector 0 without its cause in EVTQ_STATUS")
	}
	q.write32(device.PL, device.PLEventQueue+device.QueueStatus, off)
	q.write32(device.PL, device.PLIRQStatus, 1)
	if q.get(device.PLIRQStatus) != 0 {
		t.Error("vector 0 is still asserted")
	}
}

// CTRL.reset disables both; without CAPS[28] they cannot be enabled.
func TestQueueOff(t *testing.T) {
	q := newQueued(newBenchOf(t, Config{ID: 5, VABits: 48, Epoch: 9, Queues: true}))
	q.write32(device.PL, device.PLCtrl, device.CtrlReset|device.CtrlEnable)
	for _, base := range []uint32{device.PLEventQueue, device.PLCommandQueue} {
		for off := uint32(0); off <= device.QueueStatus; off += 4 {
			if v := q.get(base + off); v != 0 {
				t.Errorf("pl+%#x is %#x after reset", base+off, v)
			}
		}
	}
	q.out = nil
	q.fault(0)
	q.write32(device.SMMU, device.Bank(2, device.SCTLR), device.SCTLRDriver)
	q.drive()
	if len(q.vectors) == 0 || q.vectors[0] != device.VectorFault || q.events() != nil {
		t.Errorf("vectors %v after reset", q.vectors)
	}
	q = newQueued(newBench(t))
	q.command(device.Command{Kind: device.CommandNop})
	if q.get(device.PLEventQueue+device.QueueStatus) != 0 || q.n.queues.Active() {
		t.Error("a node without CAPS[28] has queues")
	}
}
