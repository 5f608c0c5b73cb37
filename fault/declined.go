package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Declined handles a RAPF with the fail bit that the process of a slot asks pfd to send to
// source: the process was asked for pages (method touch) and could not page them in. It only
// knows an errno, which does not distinguish memory that can never be paged in from a temporary
// failure. So the driver pages in and answers the block in place of
// the process. Declined reports whether it does; it does not for a block about which no process
// was asked or that is already answered, and the caller decides about that message. It runs on
// the owning goroutine.
func (d *Driver) Declined(slot int, source device.NodeID, r mailbox.RAPF) bool {
	s := &d.slots[slot]
	if d.dead || !s.live || s.target.Method != Touch || r.Claimed != s.target.PDID {
		return false
	}
	taken := false
	end := d.log.next
	for n := end - min(end, RecordDepth); n < end; n++ {
		rec := d.log.at(n)
		if rec == nil || rec.Outcome != Delegated || rec.declined || !rec.Block || rec.Slot != slot || rec.PDID != s.target.PDID ||
			rec.Source != source || rec.Transaction != r.Transaction || rec.Sequence != r.Sequence {
			continue
		}
		rec.declined, taken = true, true
		d.decline(s, *rec)
	}
	if taken {
		d.wake()
	}
	return taken
}

// decline makes a block wait for a page that its process could not page in.
func (d *Driver) decline(s *slot, rec Record) {
	k := pageKey{uint64(rec.Page >> device.PageShift), rec.Write}
	b := d.block(s, blockKey{rec.Source, rec.Transaction, !rec.Write})
	if b == nil {
		s.counts.Dropped++
		return
	}
	d.renew(s, b, rec.Sequence)
	if _, ok := s.waitsFor(k, b); ok {
		return
	}
	rec.Outcome, rec.Answered, rec.declined, rec.shown = Pending, 0, false, false
	if d.await(s, k, b, rec) {
		s.queue(k.page, k.page+1, k.write)
	}
}
