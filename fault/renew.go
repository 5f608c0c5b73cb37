package fault

import "github.com/exanet/pfd/device"

// renew has a block go on under another sequence number: it was sent again, or
// its id belongs to another block by now. Whatever is absent for the new number
// has entries of its own, so that what the old one waits for, and how that
// ends, says nothing about it: a page that failed for a former use of the id
// must not fail the present one.
func (d *Driver) renew(s *slot, bi int32, seq device.Sequence) {
	b := &s.blocks[bi]
	if b.sequence == seq {
		return
	}
	b.sequence = seq
	for i := range s.waits {
		w := &s.waits[i]
		if !w.used || w.block != bi {
			continue
		}
		for p := &s.byPage[pageBucket(w.page)]; *p != none; p = &s.waits[*p].next {
			if *p == int32(i) {
				*p = w.next
				break
			}
		}
		*w = wait{next: s.freeWait}
		s.freeWait = int32(i)
	}
	for _, n := range b.recs[:b.nrecs] {
		if r := d.log.at(n); r != nil {
			if r.Outcome != Failed {
				r.Outcome = Unsent
			}
			d.final(r)
		}
	}
	b.waits, b.nrecs, b.failed, b.abandoned = 0, 0, false, false
}
