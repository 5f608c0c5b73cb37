package fault

import "github.com/exanet/pfd/device"

// renew has a block go on under another sequence number: it was sent again, or
// its id belongs to another block by now. Whatever is absent for the new number
// has entries of its own, so that what the old one waits for, and how that
// ends, says nothing about it: a page that failed for a former use of the id
// must not fail the present one.
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
