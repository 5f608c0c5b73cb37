package fault

import (
	"cmp"
	"errors"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// roundEntries limits the entries that one round drains from each FIFO (defined by this project;
// 002: up to 16 reads within a tasklet's 19 us). The owning goroutine has other work, and a flood
// continues in the next round after that.
const roundEntries = 64

// errNoAddress is the cause of a fault whose address cannot belong to its domain.
var errNoAddress = errors.New("past the address width, or of another process index")

// pageInHalf is one round of the page-in half (spec/faultpath.md, destination fault, 3): drain,
// unmask, drain again, merge, page in.
func (d *Driver) pageInHalf() {
	d.posted = false
	if d.dead {
		return
	}
	d.stats.Rounds++
	d.demands, d.asks, d.instant = d.demands[:0], d.asks[:0], d.instant[:0]

	rx, tx := roundEntries, roundEntries
	more := d.drain(&rx, &tx)
	if !more {
		// The bit is cleared while the FIFOs are empty, so that unmasking sends no vector for
		// entries already read; a new entry sets it again.
		d.write32(device.PL, device.PLIRQStatus, irqFIFO)
		off := uint32(irqFIFO)
		if d.stuck < stuckLimit {
			off |= irqFault
		}
		d.setMask(d.mask &^ off)
		if more = d.drain(&rx, &tx); more {
			d.setMask(d.mask | irqFIFO)
		}
	}
	d.takeFARs()
	if d.dead {
		return
	}
	d.merge()
	d.askAll()
	for _, r := range d.instant {
		r.block.instant = false
		if len(r.block.waits) == 0 {
			d.finish(&d.slots[r.slot], r.block)
		}
	}
	for n := range d.slots {
		d.startNext(&d.slots[n])
	}
	if more {
		d.wake()
	}
}

// drain reads both FIFOs within the budgets, and reports whether entries are left.
func (d *Driver) drain(rx, tx *int) bool {
	more := d.drainOne(device.PLRXFIFO, device.PLRXFIFOStatus, device.PLRXFIFOExt, rx, false)
	if d.tx && d.drainOne(device.PLTXFIFO, device.PLTXFIFOStatus, device.PLTXFIFOExt, tx, true) {
		more = true
	}
	return more
}

func (d *Driver) drainOne(head, status, extAt uint32, budget *int, tx bool) (more bool) {
	st := d.read32(device.PL, status)
	if st&device.FIFOOverflow != 0 {
		d.stats.Overflows++
		d.write32(device.PL, status, device.FIFOOverflow)
	}
	level := int(st & device.FIFOLevelMask)
	which := 0
	if tx {
		which = 1
	}
	d.stats.Highest[which] = max(d.stats.Highest[which], level)
	n := min(level, *budget)
	*budget -= n
	for i := 0; i < n && !d.dead; i++ {
		// EXT belongs to the head, so it is read before the pop. Each entry takes two 64-bit
		// reads; the second pops (000 §3.2.3.1).
		ext := d.read32(device.PL, extAt)
		ab := d.read64(device.PL, head+device.FIFOWordA)
		cd := d.read64(device.PL, head+device.FIFOWordC)
		if ab|cd == 0 {
			// Emptied concurrently: the node was reset.
			return false
		}
		e, ok := device.DecodeFaultEntry([4]uint32{uint32(ab), uint32(ab >> 32), uint32(cd), uint32(cd >> 32)})
		switch {
		case !ok:
			d.stats.Invalid++
		case tx && d.timeoutSource: // the sender's time-out retransmits the block
		default:
			d.entry(e, ext, tx)
		}
	}
	return level > n
}

// entry handles one entry: it finds its block and makes it wait for the page.
func (d *Driver) entry(e device.FaultEntry, ext uint32, tx bool) {
	s := d.byPDID(e.PDID)
	if s == nil {
		d.stats.UnknownPDID++
		return
	}
	s.counts.Entries++
	write := !tx
	if write {
		s.counts.Remote++
	} else {
		s.counts.Local++
	}
	rec := Record{
		Page: e.VA(), Slot: s.target.Slot, PDID: e.PDID,
		Source: e.Source, Transaction: e.Transaction, Sequence: e.Sequence,
		Write: write, Block: true, Method: s.target.Method, Policy: s.target.Policy,
		Interrupt: d.irqAt, Drained: d.now(),
	}
	// The process index is ignored: here a domain is one process of a node, identified by its
	// PDID alone (000 §3.2.1 has several processes in a domain as future work).
	bad := d.never(s, pageKey{e.Page, write})
	if s.target.Method == Touch && bad == nil {
		d.asks = append(d.asks, ask{
			slot: uint8(s.target.Slot), tx: tx, source: e.Source,
			transaction: e.Transaction, sequence: e.Sequence,
			page: e.Page, end: e.Page + d.pages(s, e.Page, write, ext, true), last: e.Page + 1,
			order: len(d.asks), record: d.record(rec),
		})
		return
	}
	b := d.block(s, blockKey{e.Source, e.Transaction, tx})
	if b == nil {
		s.counts.Dropped++
		return
	}
	d.renew(s, b, e.Sequence)
	if bad != nil {
		s.counts.Unresolvable++
		rec.Outcome = Failed
		rec.Cause = bad
		b.remember(d.record(rec))
		b.failed = true
		if !b.instant {
			b.instant = true
			d.instant = append(d.instant, answer{uint8(s.target.Slot), b})
		}
		return
	}
	k := pageKey{e.Page, write}
	if record, ok := s.waitsFor(k, b); ok {
		s.counts.Duplicates++
		if r := d.log.at(record); r != nil {
			r.Sequence = e.Sequence
		}
		return
	}
	if d.await(s, k, b, rec) {
		d.demand(s, e.Page, write, ext, true)
	}
}

// byPDID returns the slot of a domain; nil if there is none.
func (d *Driver) byPDID(p device.PDID) *slot {
	for n := range d.slots {
		if s := &d.slots[n]; s.live && s.target.PDID == p {
			return s
		}
	}
	return nil
}

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

// await makes a block wait for a page, with its record; false: there is no room, and the sender's
// guard recovers.
func (d *Driver) await(s *slot, k pageKey, b *block, rec Record) bool {
	n := d.record(rec)
	if d.wait(s, k, b, n) {
		b.remember(n)
		return true
	}
	s.counts.Dropped++
	r := d.log.at(n)
	r.Outcome = Unsent
	d.final(r)
	if len(b.waits) == 0 && !b.instant && !b.unsent {
		d.dropBlock(s, b)
	}
	return false
}

// never returns the reason why an access must not be paged in, nil if it may be.
func (d *Driver) never(s *slot, k pageKey) error {
	switch {
	case k.page >= d.limit:
		d.stats.BadPage++
		return errNoAddress
	case k.write && s.target.Forbids != nil && s.target.Forbids(device.VA(k.page<<device.PageShift)):
		return gup.ErrDenied
	}
	return nil
}

// demand records a page that is neither queued nor in flight, with its range.
func (d *Driver) demand(s *slot, page uint64, write bool, ext uint32, known bool) {
	if _, ok := s.overlap(page, page+1, write); ok {
		return
	}
	n := d.pages(s, page, write, ext, known)
	d.ranges = d.ranges[:0]
	if s.target.Policy == Adaptive {
		brought, unused := s.ahead.Brought, s.ahead.Unused
		n, d.ranges = s.ahead.Fault(page, n, write, d.ranges)
		s.counts.Ahead += s.ahead.Brought - brought
		s.counts.Unused += s.ahead.Unused - unused
	}
	d.demands = append(d.demands, demand{slot: uint8(s.target.Slot), write: write, page: page, end: page + n})
	for _, r := range d.ranges {
		if r.Start < d.limit {
			d.demands = append(d.demands, demand{slot: uint8(s.target.Slot), write: write, page: r.Start, end: min(r.End, d.limit)})
		}
	}
}

// pages returns a fault's range according to the domain's policy. If FAR reported this very page,
// the faulting address is known to the byte.
func (d *Driver) pages(s *slot, page uint64, write bool, ext uint32, known bool) uint64 {
	var offset uint64
	if uint64(s.hint>>device.PageShift) == page && s.hintWrite == write {
		offset = s.hint.Offset()
	}
	return rangeOf(s.target.Policy, page, d.limit, write, ext, offset, known)
}

// takeFARs handles faults reported only by FSR and FAR, of a source or of a stalled access: it
// pages in and sends nothing.
func (d *Driver) takeFARs() {
	for n := range d.slots {
		s := &d.slots[n]
		for _, k := range s.far[:s.fars] {
			page := k.page
			s.counts.Entries++
			if k.write {
				s.counts.Remote++
			} else {
				s.counts.Local++
			}
			if d.never(s, k) != nil {
				d.resumeFor(s, k, Failed)
				continue
			}
			rec := Record{
				Page: device.VA(page << device.PageShift), Slot: n, PDID: s.target.PDID, Source: d.node, Write: k.write,
				Method: s.target.Method, Policy: s.target.Policy,
				Interrupt: d.irqAt, Drained: d.now(),
			}
			if s.target.Method == Touch {
				d.asks = append(d.asks, ask{
					slot: uint8(n), tx: true, bare: true,
					page: page, end: page + d.pages(s, page, false, 0, false), last: page + 1,
					order: len(d.asks), record: d.record(rec),
				})
				continue
			}
			if _, ok := s.waitsFor(k, nil); ok {
				s.counts.Duplicates++
				continue
			}
			n := d.record(rec)
			if !d.wait(s, k, nil, n) {
				s.counts.Dropped++
				r := d.log.at(n)
				r.Outcome = Unsent
				d.final(r)
				d.resumeFor(s, k, Unsent)
				continue
			}
			d.demand(s, page, k.write, 0, false)
		}
		s.fars = 0
	}
}

// merge makes spans of the round's demands: unique pages, adjoining ranges joined, nothing
// requested twice.
func (d *Driver) merge() {
	slices.SortFunc(d.demands, func(a, b demand) int {
		if c := cmp.Compare(a.slot, b.slot); c != 0 {
			return c
		}
		if a.write != b.write {
			if a.write {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.page, b.page)
	})
	for i := 0; i < len(d.demands); {
		first := d.demands[i]
		end := first.end
		for i++; i < len(d.demands); i++ {
			n := d.demands[i]
			if n.slot != first.slot || n.write != first.write || n.page > end {
				break
			}
			end = max(end, n.end)
		}
		d.slots[first.slot].queue(first.page, end, first.write)
	}
}
