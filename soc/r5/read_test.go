package r5

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

const reader = device.NodeID(5)

// ask sends the request of a read of 100 bytes with a tag.
func (r *rig) ask(tag uint16, change ...func(*mailbox.ReadRequest)) {
	m := mailbox.ReadRequest{
		PDID: pdid, Tag: tag, Size: 100, Src: 0x10_0000, Dst: dst + device.VA(tag)<<16, Notify: dst + 1<<40, First: 1, Last: 2,
	}
	for _, c := range change {
		c(&m)
	}
	r.fw.Read(reader, 20, 77, m)
}

// A read is a write to the requester.
func TestReadIsServed(t *testing.T) {
	r := newRig(t)
	r.ask(3)
	b := r.one()
	if b.DstNode != reader || b.DstPDID != pdid || b.SrcPDID != pdid || b.Source != 0x10_0000 || b.VA != dst+3<<16 || !b.Read || !b.HasWords || b.Length != 100 {
		t.Errorf("%+v", b)
	}
	if r.done[32].Done != device.DoneReadOngoing {
		t.Errorf("done %d while it goes on", r.done[32].Done)
	}
	r.ack(b)
	r.none()
	if r.done[32].Done != device.DoneCompleted || len(r.answer) != 0 {
		t.Errorf("done %d, %d answers: success shows at the notification address", r.done[32].Done, len(r.answer))
	}
}

// 32 are served, 32 wait in their order, more are refused with code 3.
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
	// Those that wait or are served are known: asked for again, nothing happens.
	for tag := range uint16(64) {
		r.ask(tag)
	}
	r.none()
	if len(r.answer) != 2 {
		t.Errorf("%d answers to requests that are known", len(r.answer))
	}
	// One ends: the first that waits has its channel, and there is a place.
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
	// One that waits is cancelled, one that is served, too.
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
	// The domain goes: those that wait are told, in their order.
	r.answer = nil
	r.fw.SetDomain(0, pdid, false)
	r.blocks()
	if len(r.answer) != 28 || r.answer[0].Transaction != 36 || r.answer[0].Sequence != 10 || r.answer[27].Transaction != 64 {
		t.Errorf("%d answers: %+v", len(r.answer), r.answer)
	}
}

// Requests that cannot be served are answered with the cause.
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

// A read that fails is answered with its code, and again when it is asked for
// again: the answer may have been lost.
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
	// The same tag for another read is another read.
	r.ask(3, func(m *mailbox.ReadRequest) { m.Size = 200 })
	if b := r.one(); b.Length != 200 {
		t.Errorf("%d bytes", b.Length)
	}
}
