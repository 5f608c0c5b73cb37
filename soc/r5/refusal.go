package r5

import "github.com/exanet/pfd/device"

// Refusal is one time that a block was refused for a page fault, or asked for again,
// told when that is over: the block is acknowledged, refused once more, or ended.
type Refusal struct {
	Slot, Channel uint8
	Transaction   device.TransactionID
	Sequence      device.Sequence // of the sending that was refused
	First         bool            // the block's first
	Final         bool            // the block is over
	Status        uint8           // of a block that is over: the transfer's, 0 acknowledged
	Again         int             // retransmissions of the block so far
	Kicked, Sent  int64           // stamps of the doorbell and of the end of that sending
}

// refusal is what a transaction keeps of its last one.
type refusal struct {
	open  bool
	first bool
	seq   device.Sequence
	sent  int64
}

// Stamp gives the firmware a number that stands in what Refusals tells: the time by
// another clock than the machines'. Nothing depends on it.
func (fw *Firmware) Stamp(v int64) { fw.stamp = v }

// Refusals gives what has been told since Forget.
func (fw *Firmware) Refusals() []Refusal { return fw.refusals }

// Forget forgets it.
func (fw *Firmware) Forget() { fw.refusals = fw.refusals[:0] }

// refuse notes that the present sending of a block is refused or asked for again.
func (fw *Firmware) refuse(id int16) {
	t := &fw.tx[id]
	if t.refusal.open && t.refusal.seq == t.seq {
		return // the RAPF of a block that is paused
	}
	first := !t.refusal.open
	fw.tellRefusal(id, false, 0)
	t.refusal = refusal{open: true, first: first, seq: t.seq, sent: t.sentAt}
}

// tellRefusal tells the last refusal of a block, where there was one.
func (fw *Firmware) tellRefusal(id int16, final bool, status uint8) {
	t := &fw.tx[id]
	if !t.refusal.open {
		return
	}
	x := &fw.channels[t.transfer]
	fw.refusals = append(fw.refusals, Refusal{
		Slot: x.slot, Channel: uint8(t.transfer % device.ChannelsPerSlot),
		Transaction: device.TransactionID(id), Sequence: t.refusal.seq,
		First: t.refusal.first, Final: final, Status: status, Again: t.resent,
		Kicked: x.kicked, Sent: t.refusal.sent,
	})
}
