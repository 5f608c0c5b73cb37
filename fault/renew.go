package fault

import "github.com/exanet/pfd/device"

// renew continues a block under another sequence number: it was retransmitted, or its ID now
// belongs to another block. Pages absent under the new number have entries of their own, so the
// old number's waits are dropped: a page that failed for a former use of the ID must not fail the
// current one.
func (d *Driver) renew(s *slot, b *block, seq device.Sequence) {
	if b.sequence == seq {
		return
	}
	b.sequence = seq
	d.unwait(s, b)
	for _, n := range b.recs[:b.nrecs] {
		if r := d.log.at(n); r != nil {
			if r.Outcome != Failed {
				r.Outcome = Unsent
			}
			d.final(r)
		}
	}
	b.nrecs, b.failed, b.memory, b.abandoned = 0, false, false, false
}
