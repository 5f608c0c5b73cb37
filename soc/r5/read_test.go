package r5

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

const reader = device.NodeID(5)

// ask sends the request of a read of 100 bytes with a tag.
func (r *rig) ask(tag uint16, change ...func(*mailbox.ReadRequest)) {
	m := mailbox.ReadRequest{
		PDID: pdid, Tag: tag, Size: 100, Src: 0x10_0000, Dst: dst + device.VA(tag)<<16, Notify: dst + 1<<40, First: 1, Last: 2,
		Generation: gen, TargetGeneration: gen,
	}
	for _, c := range change {
		c(&m)
	}
	r.fw.Read(reader, 20, 77, m)
}

// A read is served as a write to the requester.
func TestReadIsServed(t *testing.T) {
	r := newRig(t)
	r.ask(3)
	b := r.one()
	if b.DstNode != reader || b.DstPDID != pdid || b.SrcPDID != pdid || b.Source != 0x10_0000 || b.VA != dst+3<<16 || !b.Read || !b.HasWords || b.Length != 100 {
		t.Errorf("%+v", b)
	}
	if r.done[32].Done != device.DoneReadOngoing {
		t.Errorf("done %d while it runs", r.done[32].Done)
	}
	r.ack(b)
	r.none()
	if r.done[32].Done != device.DoneCompleted || len(r.answer) != 0 {
		t.Errorf("done %d, %d answers: success shows at the notification address", r.done[32].Done, len(r.answer))
	}
}

// 32 are served, 32 wait in order, and more are refused with code 3.
func TestReadQueue(t *testing.T) {
	r := newRig(t)
	for tag := range uint16(32 + 32) {
		r.ask(tag)
	}
	b := r.blocks()
	if len(b) != 32 || len(r.answer) != 0 {
		t.Fatalf("%d served, %d answers", len(b), len(r.answer))
	}
	for tag := uint16(64); tag < 66; tag++ {
		r.ask(tag)
	}
	r.none()
	if want := []mailbox.Ack{{Transaction: 64, Code: 3}, {Transaction: 65, Code: 3}}; !slices.Equal(r.answer, want) {
		t.Errorf("answers %+v, want %+v", r.answer, want)
	}
	// Waiting and served reads are known: repeating their requests has no effect.
	for tag := range uint16(64) {
		r.ask(tag)
	}
	r.none()
	if len(r.answer) != 2 {
		t.Errorf("%d answers to known requests", len(r.answer))
	}
	// When one ends, the first waiting read gets its channel, and a place is free.
	for i, tag := range []device.VA{32, 33, 34} {
		r.ack(b[7+i])
		next := r.one()
		if next.VA != dst+tag<<16 {
			t.Errorf("served to %v, want tag %d", next.VA, tag)
		}
	}
	r.ask(64)
	r.none()
	if len(r.answer) != 2 {
		t.Error("refused, although there is a place")
	}
	// A waiting read is cancelled, and so is one being served.
	cancel := func(m *mailbox.ReadRequest) { m.Size = 0 }
	r.ask(40, cancel)
	r.ask(0, cancel)
	r.none()
	if want := []mailbox.Ack{{Transaction: 40, Code: 6, Sequence: 9}}; !slices.Equal(r.answer[2:], want) {
		t.Errorf("answers %+v, want %+v", r.answer[2:], want)
	}
	r.sent(b[0]) // it was being read till now
	if next := r.one(); next.VA != dst+35<<16 {
		t.Errorf("served to %v", next.VA)
	}
	if want := (mailbox.Ack{Transaction: 0, Code: 6, Sequence: 9}); len(r.answer) != 4 || r.answer[3] != want {
		t.Errorf("answers %+v", r.answer)
	}
	// The domain ends: the waiting reads are answered, in order.
	r.answer = nil
	r.fw.SetDomain(0, pdid, gen, false)
	r.blocks()
	if len(r.answer) != 28 || r.answer[0].Transaction != 36 || r.answer[0].Sequence != 10 || r.answer[27].Transaction != 64 {
		t.Errorf("%d answers: %+v", len(r.answer), r.answer)
	}
}

// Requests that cannot be served are answered with the reason.
func TestReadRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*mailbox.ReadRequest)
		want   mailbox.Ack
	}{
		{"no such domain", func(m *mailbox.ReadRequest) { m.Target = 99 }, mailbox.Ack{Code: 5, Sequence: 5}},
		{"not admitted", func(m *mailbox.ReadRequest) { m.PDID, m.Target = 8, pdid }, mailbox.Ack{Code: 5, Sequence: 5}},
		{"no bytes, and nothing to cancel", func(m *mailbox.ReadRequest) { m.Size = 0 }, mailbox.Ack{Code: 2, Sequence: 2}},
		{"source past the width", func(m *mailbox.ReadRequest) { m.Src = 1<<48 - 99 }, mailbox.Ack{Code: 2, Sequence: 2}},
		{"destination past the width", func(m *mailbox.ReadRequest) { m.Dst = 1<<48 - 99 }, mailbox.Ack{Code: 2, Sequence: 2}},
		{"no notification", func(m *mailbox.ReadRequest) { m.Notify = 0 }, mailbox.Ack{Code: 2, Sequence: 2}},
		{"words misaligned", func(m *mailbox.ReadRequest) { m.Notify = 0x1008 }, mailbox.Ack{Code: 2, Sequence: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			c.want.Transaction = 11
			r.ask(11, c.change)
			r.none()
			if len(r.answer) != 1 || r.answer[0] != c.want {
				t.Errorf("answers %+v, want %+v", r.answer, c.want)
			}
		})
	}
	// A domain that is admitted.
	r := newRig(t)
	r.fw.SetPeers(0, &[device.PeersPerSlot]device.PDID{0, 8})
	r.ask(1, func(m *mailbox.ReadRequest) { m.PDID, m.Target = 8, pdid })
	if b := r.one(); b.DstPDID != 8 || b.SrcPDID != pdid {
		t.Errorf("from %d to %d", b.SrcPDID, b.DstPDID)
	}
}

// A failed read is answered with its code, and again when its request is repeated, because the
// answer may have been lost.
func TestReadFails(t *testing.T) {
	r := newRig(t)
	r.ask(3)
	b := r.one()
	r.sent(b)
	r.reply(b, device.CodeDomain)
	for range 3 {
		r.none()
		if want := (mailbox.Ack{Transaction: 3, Code: 5, Sequence: 5}); len(r.answer) != 1 || r.answer[0] != want {
			t.Errorf("answers %+v, want %+v", r.answer, want)
		}
		r.answer = nil
		r.ask(3)
	}
	// The same tag for another read is a different read.
	r.ask(3, func(m *mailbox.ReadRequest) { m.Size = 200 })
	if b := r.one(); b.Length != 200 {
		t.Errorf("%d bytes", b.Length)
	}
}

// A request that arrives after its read was served, because it was late or duplicated, is
// dropped: it must not be served into memory that the requester may have reused, and a dead tag
// gets no answer.
func TestReadAfterItWasServed(t *testing.T) {
	r := newRig(t)
	r.ask(3)
	r.ack(r.one())
	for range 3 {
		r.ask(3)
		r.none()
	}
	if len(r.answer) != 0 {
		t.Errorf("answers %+v to a request whose read has ended", r.answer)
	}
	// The same tag for another read, or after the requester's reset, is a different read.
	r.ask(3, func(m *mailbox.ReadRequest) { m.Last++ })
	r.ack(r.one())
	r.fw.Read(reader, 20, 78, mailbox.ReadRequest{PDID: pdid, Tag: 3, Size: 100, Src: 0x10_0000, Dst: dst + 3<<16, Notify: dst + 1<<40, First: 1, Last: 2, Generation: gen, TargetGeneration: gen})
	r.ack(r.one())

	// This many are remembered; then the oldest is forgotten.
	for tag := range uint16(64) {
		r.ask(100 + tag)
		r.ack(r.one())
	}
	for tag := range uint16(64) {
		r.ask(100 + tag)
		r.none()
	}
	r.ask(3)
	r.ack(r.one())

	// They do not affect the domain's successor.
	r.fw.SetDomain(0, pdid, gen, false)
	r.fw.SetDomain(0, pdid, gen, true)
	r.blocks()
	r.ask(3)
	r.one()
}

// When PD_PEERS no longer admits a requester, its reads end, both served and waiting ones.
func TestReadsEndWithTheirRight(t *testing.T) {
	r := newRig(t)
	r.fw.SetPeers(0, &[device.PeersPerSlot]device.PDID{8, 9})
	other := func(p device.PDID) func(*mailbox.ReadRequest) {
		return func(m *mailbox.ReadRequest) { m.PDID, m.Target = p, pdid }
	}
	for tag := range uint16(30) {
		r.ask(tag, other(9))
	}
	r.ask(30, other(8))
	r.ask(31, other(8))
	r.ask(32, other(9)) // waits: a channel is reserved for the domain itself
	for _, b := range r.blocks() {
		r.sent(b)
	}
	r.fw.SetPeers(0, &[device.PeersPerSlot]device.PDID{9})
	if b := r.one(); b.DstPDID != 9 || b.VA != dst+32<<16 {
		t.Errorf("served next: %+v", b.Header)
	}
	want := []mailbox.Ack{{Transaction: 30, Code: 5, Sequence: 5}, {Transaction: 31, Code: 5, Sequence: 5}}
	slices.SortFunc(r.answer, func(a, b mailbox.Ack) int { return int(a.Transaction) - int(b.Transaction) })
	if !slices.Equal(r.answer, want) {
		t.Errorf("answers %+v, want %+v", r.answer, want)
	}
}

// A peer whose reads meet unserved faults does not use up the channels, the queue places or the
// IDs of the domain that admits it: all other requesters are served.
func TestReadsOfAPeerThatHoldsWhatItCan(t *testing.T) {
	r := newRig(t)
	const greedy, other = device.PDID(8), device.PDID(9)
	r.fw.SetPeers(0, &[device.PeersPerSlot]device.PDID{greedy, other})
	by := func(p device.PDID, size uint32) func(*mailbox.ReadRequest) {
		return func(m *mailbox.ReadRequest) { m.PDID, m.Target, m.Size = p, pdid, size }
	}
	for tag := range uint16(80) {
		r.ask(tag, by(greedy, 1<<20))
	}
	for held := r.blocks(); len(held) > 0; held = r.blocks() {
		for _, b := range held {
			r.sent(b)
			r.reply(b, device.CodeSlaveError) // a fault: paused until it is served
		}
	}
	if n := len(r.answer); n != 80-30-30 {
		t.Errorf("%d requests refused, want all but 30 that are served and 30 that wait", n)
	}
	r.answer = nil
	read := func(tag uint16, p device.PDID) wire.Block {
		t.Helper()
		r.ask(tag, by(p, 100))
		return r.one()
	}
	// One for each, and the next one waits.
	b := read(100, other)
	r.ask(101, by(other, 100))
	r.none()
	if len(r.answer) != 0 {
		t.Errorf("refused: %v", r.answer)
	}
	r.ack(read(102, pdid))
	r.ack(b)
	if b := r.one(); b.VA != dst+101<<16 {
		t.Errorf("read to %v served, want tag 101", b.VA)
	}
	// The domain's own writes continue beside them.
	r.start(0, 0, dst, 16<<20)
	if b := r.blocks(); len(b) == 0 {
		t.Error("no id is left for the domain's own transfers")
	}
}

// A peer admitted when all channels are busy gets the next free one; a peer that is no longer
// admitted frees its reservation.
func TestReadsWhenPeersChange(t *testing.T) {
	r := newRig(t)
	const late = device.PDID(8)
	for tag := range uint16(readChannels + 1) {
		r.ask(tag)
	}
	b := r.blocks()
	if len(b) != readChannels {
		t.Fatalf("%d served, want %d: the domain admits no others", len(b), readChannels)
	}
	r.fw.SetPeers(0, &[device.PeersPerSlot]device.PDID{late})
	r.none()
	r.ack(b[0])
	r.none() // reserved
	r.ask(99, func(m *mailbox.ReadRequest) { m.PDID, m.Target = late, pdid })
	r.one()
	r.ack(b[1])
	if b := r.one(); b.VA != dst+readChannels<<16 {
		t.Errorf("read to %v served, want the waiting one", b.VA)
	}
	r.ask(readChannels + 1)
	r.none()
	r.fw.SetPeers(0, &[device.PeersPerSlot]device.PDID{})
	r.blocks() // the read of late ends, and the waiting one gets its channel
	if err := r.fw.Audit(); err != nil {
		t.Error(err)
	}
}
