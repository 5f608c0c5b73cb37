package r5

import "github.com/exanet/pfd/device"

// Refusal describes one refusal of a block for a page fault, or one request to retransmit it. It
// is reported when its outcome is known: the block is acknowledged, refused again, or ended.
type Refusal struct {
	Slot, Channel uint8
	Transaction   device.TransactionID
	Sequence      device.Sequence // of the sending that was refused
	First         bool            // the block's first
	Final         bool            // the block has ended
	Status        uint8           // of an ended block: the transfer's status, 0 if acknowledged
	Again         int             // retransmissions of the block so far
	Kicked, Sent  int64           // stamps of the doorbell and of the end of the refused sending
	Obeyed        int64           // stamp of the retransmission request, 0 if there was none
}

// refusal is a transaction's record of its last refusal.
type refusal struct {
	open  bool
	first bool
	seq   device.Sequence
	sent  int64
	asked int64 // stamp of the retransmission request
}

// Stamp sets the time by a clock other than the machines'. Refusals reports it; nothing else
// depends on it.
func (fw *Firmware) Stamp(v int64) { fw.stamp = v }

// Refusals returns the refusals that have completed since Forget.
func (fw *Firmware) Refusals() []Refusal { return fw.refusals }

// Forget clears the list that Refusals returns.
func (fw *Firmware) Forget() { fw.refusals = fw.refusals[:0] }

// refuse records that the current sending of a block was refused, or that a retransmission was
// requested.
func (fw *Firmware) refuse(id int16) {
	t := &fw.tx[id]
	if t.refusal.open && t.refusal.seq == t.seq {
		return // the RAPF of a paused block
	}
	first := !t.refusal.open
	fw.tellRefusal(id, false, 0)
	t.refusal = refusal{open: true, first: first, seq: t.seq, sent: t.sentAt}
}

// tellRefusal reports a block's last refusal, if there was one.
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
		Kicked: x.kicked, Sent: t.refusal.sent, Obeyed: t.refusal.asked,
	})
}
