package r5

import "github.com/exanet/pfd/device"

// Stamp sets the time by a clock other than the machines'. Refusals reports it; nothing else
// depends on it.
func (fw *Firmware) Stamp(v int64) { fw.stamp = v }

// Refusals returns the refusals that have completed since Forget.
func (fw *Firmware) Refusals() []Refusal { return fw.refusals }

// Forget clears the list that Refusals returns.
func (fw *Firmware) Forget() { fw.refusals = fw.refusals[:0] }

// noteRefusal records that the current sending of a block was refused, or that a retransmission was
// requested.
func (fw *Firmware) noteRefusal(t *transaction) {
	if t.refusal.open && t.refusal.seq == t.seq {
		return // the RAPF of a paused block
	}
	t.timed = false
	first := !t.refusal.open
	fw.tellRefusal(t, false, 0)
	t.refusal = refusal{open: true, first: first, seq: t.seq, sent: t.sentAt}
}

// tellRefusal reports a block's last refusal, if there was one.
func (fw *Firmware) tellRefusal(t *transaction, final bool, status uint8) {
	if !t.refusal.open {
		return
	}
	x := t.transfer
	fw.refusals = append(fw.refusals, Refusal{
		Slot: x.slot, Channel: uint8(x.channel % device.ChannelsPerSlot),
		Transaction: device.TransactionID(t.id), Sequence: t.refusal.seq,
		First: t.refusal.first, Final: final, Status: status, Again: t.resent,
		Kicked: x.kicked, Sent: t.refusal.sent, Obeyed: t.refusal.asked,
	})
}
