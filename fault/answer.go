package fault

import (
	"errors"
	"slices"

	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// sendTries is how often a RAPF is tried while the packetizer is busy, once per turn of the
// owning goroutine (defined by this project).
const sendTries = 16

// finish answers a block that waits for nothing more: with one RAPF, which has the fail bit if a
// page is unresolvable. It sends none if a page could not be paged in for now: the guard
// retransmits the block, and the next attempt may succeed.
func (d *Driver) finish(s *slot, b *block) {
	if b.abandoned && !b.failed {
		d.closeBlock(s, b, Unsent)
		return
	}
	d.send(s, b)
}

// send sends a block's RAPF through the packetizer wired to the domain's PDID: to the sender's
// node or, for a source fault, to this one.
func (d *Driver) send(s *slot, b *block) {
	dst := b.source
	if b.tx {
		dst = d.node
	}
	err := s.port.RAPF(dst, mailbox.RAPF{
		PDID: s.target.PDID, Claimed: s.target.PDID,
		Transaction: b.transaction, Sequence: b.sequence, Fail: b.failed, Memory: b.memory,
	})
	switch {
	case err == nil && b.failed:
		s.counts.RAPFFail++
		d.closeBlock(s, b, Failed)
	case err == nil:
		s.counts.RAPF++
		d.closeBlock(s, b, Resolved)
	case errors.Is(err, packetizer.ErrBusy):
		if b.tries++; b.tries >= sendTries {
			s.counts.Busy++
			d.closeBlock(s, b, Unsent)
			return
		}
		if !b.unsent {
			b.unsent = true
			s.resend = append(s.resend, b)
		}
		if !d.sendAgainPosted {
			d.sendAgainPosted = true
			d.bus.Post(d.sendAgainFunc)
		}
	case errors.Is(err, packetizer.ErrRefused):
		s.counts.Refused++
		d.closeBlock(s, b, Unsent)
	default:
		d.gone(err)
		d.closeBlock(s, b, Unsent)
	}
}

// sendAgain retries the RAPFs that found the packetizer busy.
func (d *Driver) sendAgain() {
	d.sendAgainPosted = false
	for n := range d.slots {
		s := &d.slots[n]
		// send appends blocks that are still busy behind the ones taken here.
		for k := len(s.resend); k > 0 && !d.dead; k-- {
			b := s.resend[0]
			s.resend = slices.Delete(s.resend, 0, 1)
			if !b.unsent {
				continue // answered in the meantime
			}
			b.unsent = false
			// A block that waits again, for pages of a newer sequence number, is answered when
			// they are resident.
			if len(b.waits) == 0 {
				d.send(s, b)
			}
		}
	}
}

// closeBlock frees a block and completes its records.
func (d *Driver) closeBlock(s *slot, b *block, o Outcome) {
	now := d.now()
	answers := o != Unsent
	for _, n := range b.recs[:b.nrecs] {
		r := d.log.at(n)
		if r == nil {
			continue
		}
		if o != Unsent {
			r.Answered = now
		}
		r.Answers, answers = answers, false
		if o != Resolved {
			r.Outcome = o
		}
		d.final(r)
	}
	d.dropBlock(s, b)
}
