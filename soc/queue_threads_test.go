package soc

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// sends makes a thread send a request to the unit of node 5 by the command queue.
func (q *queued) sends(number uint16, r atomics.Request) {
	var words [device.PktzMaxWords]uint64
	c := device.Command{Kind: device.CommandSend, Index: iface, Channel: 1, Number: number, Destination: packetizer.Destination(5, device.MailboxGSAS, 0)}
	c.Count = uint8(r.Encode(words[:]))
	copy(c.Words[:], words[:])
	q.command(c)
}

// answered returns the answer of an event.
func (q *queued) answered(e device.Event) atomics.Answer {
	q.t.Helper()
	source := mailbox.DecodeSource(e.Cookie)
	a, err := atomics.DecodeAnswer(e.Message[:source.Words])
	if err != nil || e.Kind != device.EventMessage || e.Index != iface || source.PDID != device.PDIDFirmware {
		q.t.Fatalf("%+v is no answer: %v", e, err)
	}
	return a
}

// A driver elsewhere learns by events which pages are wanted and which operations it is to perform, and
// answers by commands: no register is read.
func TestQueueThreads(t *testing.T) {
	b := newBenchOf(t, Config{ID: 5, VABits: 48, Epoch: 9, GSAS: true, Queues: true})
	b.thread(iface, tree)
	b.write64(device.PL, device.PLMboxCfg+8*iface, device.ThreadMboxCfg(ownPDID, tree)|device.MboxEvents)
	b.write32(device.PL, device.PLGSASCtrl, device.GSASEnable)
	absent := device.GSASEntry{Protection: tree, Valid: true}.Encode()
	enter := func(page uint64, back, entry uint64) {
		b.write64(device.PL, device.PLGSASPage, device.GSASRun(page, 1))
		b.write64(device.PL, device.PLGSASBack, back)
		b.write64(device.PL, device.PLGSASEntry, entry)
	}
	enter(0, 0, absent)
	enter(1, 0, absent)
	q := newQueued(b)

	add := atomics.Request{Op: atomics.FetchAdd, Address: atomics.At(5, 8), Args: [atomics.MaxArgs]uint64{3}}
	q.sends(1, add)
	if e := q.one(); e.Kind != device.EventWant || e.Address != 0 || b.n.Load(device.PL, device.PLGSASWant, 8) != device.GSASNoPage {
		t.Fatalf("an absent page: %+v", e)
	}
	enter(0, 0x7000, absent|device.GSASPresent)
	q.drive()
	if len(q.rest) != 1 || q.rest[0].Kind != Atomic || q.rest[0].Atomic.Back != 0x7008 {
		t.Fatalf("after its page came: %+v", q.rest)
	}
	id := q.rest[0].Atomic.ID
	q.command(device.Command{Kind: device.CommandAnswer, Address: uint64(id), Value: 66}) // it is not the driver's
	if e := q.events(); len(e) != 0 {
		t.Errorf("the driver ends an operation of the unit: %+v", e)
	}
	q.step(Event{Kind: AtomicDone, Access: id, N: 1, Words: [device.PktzMaxWords]uint64{5}})
	if a := q.answered(q.one()); a.Status != atomics.OK || a.Number != 1 || a.Values[0] != 5 {
		t.Errorf("answer %+v", a)
	}

	q.sends(2, atomics.Request{Op: atomics.Alive, Address: atomics.At(5, 0), Args: [atomics.MaxArgs]uint64{77}})
	e := q.one()
	r, err := atomics.DecodeRequest(e.Message[:3])
	if e.Kind != device.EventCall || err != nil || r.Op != atomics.Alive || r.Args[0] != 77 || r.Thread != atomics.ThreadOf(5, iface) || r.Protection != tree {
		t.Fatalf("a call: %+v, %+v, %v", e, r, err)
	}
	q.command(device.Command{Kind: device.CommandAnswer, Address: e.Cookie + 1, Value: 1})
	q.command(device.Command{Kind: device.CommandAnswer, Address: e.Cookie, Value: 1})
	q.command(device.Command{Kind: device.CommandAnswer, Address: e.Cookie, Value: 2})
	if a := q.answered(q.one()); a.Status != atomics.OK || a.Number != 2 || a.Values[0] != 1 {
		t.Errorf("answer %+v", a)
	}

	// A refusal is an event, and no message: a thread takes those of units for answers.
	b.write32(device.PL, device.PLGSASCtrl, 0)
	q.sends(3, add)
	if e := q.one(); e.Kind != device.EventRefused || e.Index != iface || e.Channel != 1 {
		t.Errorf("a refusal: %+v", e)
	}
	b.write32(device.PL, device.PLGSASCtrl, device.GSASEnable)
	enter(1, 0, absent)

	// A page that is wanted while the queue is full is told once there is room.
	for range 16 {
		q.command(device.Command{Kind: device.CommandNop})
	}
	add.Address = atomics.At(5, device.PageSize)
	q.sends(4, add)
	q.command(device.Command{Kind: device.CommandNop})
	kinds := map[device.EventKind]int{}
	for _, e := range q.events() {
		kinds[e.Kind]++
	}
	if kinds[device.EventWant] != 1 || kinds[device.EventNop] != 17 {
		t.Errorf("after a full queue: %v", kinds)
	}
}
