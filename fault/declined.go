package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Declined takes a RAPF with the fail bit that the process of a slot wants sent to source:
// it was asked for pages (method touch), and could not bring them in. What it knows is an
// errno, which does not tell memory that never comes from memory that has not come now. So
// the driver pages in by the domain's Pager, and answers the block in place of the process.
// Declined reports whether it does: a message about a block for which nobody was asked, or
// which is answered already, is the sender's to judge. On the owning goroutine.
func (d *Driver) Declined(slot int, source device.NodeID, r mailbox.RAPF) bool {
	s := &d.slots[slot]
	if d.dead || !s.live || s.target.Method != Touch || r.Claimed != s.target.PDID || s.target.Pager == nil && !s.target.ByMachine {
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

// decline has a block wait for a page that its process has not brought in.
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
