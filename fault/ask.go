package fault

import (
	"cmp"
	"errors"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/netlink"
)

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
