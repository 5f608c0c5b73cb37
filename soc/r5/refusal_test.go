package r5

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
)

// told returns the refusals that the firmware reports, once.
func (r *rig) told() []Refusal {
	list := slices.Clone(r.fw.Refusals())
	r.fw.Forget()
	return list
}

// A refusal is reported when its outcome is known, with the sequence number that was refused and
// the stamps of its own sending; a block without a page fault reports none.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	r.fw.Stamp(100)
	r.start(0, 3, dst, 10)
	b := r.one()
	r.fw.Stamp(200)
	r.ack(b)
	if list := r.told(); len(list) != 0 {
		t.Errorf("a block without a fault: %+v", list)
	}

	r.fw.Stamp(300)
	r.start(0, 3, dst, 10)
	first := r.one()
	r.fw.Stamp(310)
	r.sent(first)
	r.fw.Stamp(320)
	r.reply(first, device.CodeSlaveError)
	r.rapf(first)
	second := r.one()
	r.fw.Stamp(330)
	r.sent(second)
	if list := r.told(); len(list) != 0 {
		t.Errorf("reported before its outcome is known: %+v", list)
	}
	r.reply(second, device.CodeSlaveError) // another page of the block
	want := Refusal{Channel: 3, Transaction: first.ID, Sequence: first.Seq, First: true, Again: 1, Kicked: 300, Sent: 310, Obeyed: 320}
	if list := r.told(); len(list) != 1 || list[0] != want {
		t.Errorf("refused once more: %+v, want %+v", list, want)
	}
	r.rapf(second)
	third := r.one()
	r.ack(third)
	want = Refusal{Channel: 3, Transaction: first.ID, Sequence: second.Seq, Final: true, Again: 2, Kicked: 300, Sent: 330, Obeyed: 330}
	if list := r.told(); len(list) != 1 || list[0] != want {
		t.Errorf("acknowledged: %+v, want %+v", list, want)
	}
}

// A retransmission request that overtakes the NACK counts as one refusal, and a block that ends
// in another way reports its status.
func TestRefusalsOvertaken(t *testing.T) {
	r := newRig(t)
	r.start(0, 0, dst, 10)
	b := r.one()
	r.sent(b)
	r.rapf(b)
	again := r.one()
	r.reply(b, device.CodeSlaveError) // too late
	r.ack(again)
	if list := r.told(); len(list) != 1 || list[0].Sequence != b.Seq || !list[0].Final || list[0].Status != 0 {
		t.Errorf("%+v", list)
	}

	r.start(0, 0, dst, 10)
	b = r.one()
	r.sent(b)
	r.reply(b, device.CodeSlaveError)
	r.start(0, 0, dst, 10, func(d *device.Descriptor) { d.Abort = true })
	r.none()
	if list := r.told(); len(list) != 1 || list[0].Status != device.StatusAborted || !list[0].Final {
		t.Errorf("%+v", list)
	}
}
