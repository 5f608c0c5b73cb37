package fault

import (
	"cmp"
	"errors"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
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
		if !d.resent {
			d.resent = true
			d.bus.Post(d.resend)
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
	d.resent = false
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

// ask is an entry of a domain whose process pages in by itself.
type ask struct {
	slot        uint8
	tx, bare    bool
	source      device.NodeID
	transaction device.TransactionID
	sequence    device.Sequence
	page, end   uint64 // according to the policy
	last        uint64 // end of the last page that faulted
	order       int
	record      uint64
}

func (a *ask) same(b *ask) bool {
	return a.slot == b.slot && a.tx == b.tx && a.bare == b.bare &&
		a.source == b.source && a.transaction == b.transaction
}

// askAll asks the processes of the round's touch domains: one message per block, from its first
// page that faulted to its policy's end. If a block's pages are not contiguous (the notification
// address), each part has its own message.
func (d *Driver) askAll() {
	slices.SortFunc(d.asks, func(a, b ask) int {
		return cmp.Or(
			cmp.Compare(a.slot, b.slot), flag(a.tx, b.tx), flag(a.bare, b.bare),
			cmp.Compare(a.source, b.source), cmp.Compare(a.transaction, b.transaction),
			cmp.Compare(a.page, b.page), cmp.Compare(a.order, b.order))
	})
	var before ask // of the earlier messages, the one that extends furthest
	for i := 0; i < len(d.asks); {
		// The newest sequence number of the block's entries is the live one.
		j, newest := i, i
		for ; j < len(d.asks) && d.asks[j].same(&d.asks[i]); j++ {
			if d.asks[j].order > d.asks[newest].order {
				newest = j
			}
		}
		seq := d.asks[newest].sequence
		for i < j {
			m, k := d.asks[i], i
			for i++; i < j && d.asks[i].page <= max(m.end, m.last+pi4Pages); i++ {
				m.end = max(m.end, d.asks[i].end)
				m.last = d.asks[i].last
			}
			m.end = min(max(m.end, m.last), m.page+MaxPages)
			m.sequence = seq
			if before.slot == m.slot && before.tx == m.tx && before.page <= m.page && m.last <= before.end {
				// An earlier message of this round already asks for the rest of the range; this
				// one requests only the RAPF.
				m.end = m.last
			} else {
				before = m
			}
			d.askOne(&m, d.asks[k:i])
		}
	}
}

// flag orders false before true.
func flag(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (d *Driver) askOne(m *ask, of []ask) {
	s := &d.slots[m.slot]
	f := netlink.Fault{
		VA: device.VA(m.page << device.PageShift), Write: !m.tx, Pages: uint16(m.end - m.page),
	}
	if !m.bare {
		// Without a FIFO entry these fields are 0 (spec/messages.md 3).
		f.Source, f.Transaction, f.Sequence, f.PDID = m.source, m.transaction, m.sequence, s.target.PDID
	}
	err := s.target.Delegate.Ask(f)
	o := Delegated
	switch {
	case err == nil:
		s.counts.Delegated++
	case errors.Is(err, netlink.ErrFull):
		s.counts.DelegateFull++
		o = Unsent
	default:
		s.counts.DelegateErr++
		o = Unsent
	}
	now := d.now()
	for i := range of {
		if r := d.log.at(of[i].record); r != nil {
			r.Outcome = o
			if o == Delegated {
				r.Answered = now
			}
			d.final(r)
		}
	}
}
