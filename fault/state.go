package fault

import (
	"log/slog"
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/space"
)

// Driver serves the faults of one node. It must be used on the goroutine that owns the windows;
// New may be called anywhere.
type Driver struct {
	bus           device.Bus
	machine       space.Machine // pages in
	node          device.NodeID
	now           func() int64
	timeoutSource bool
	lg            *slog.Logger

	ready  bool   // CAPS and IRQ_MASK have been read
	dead   bool   // the device does not respond
	bare   bool   // source faults are reported only by FSR and FAR
	tx     bool   // there is a TXFIFO to drain
	limit  uint64 // first page past the address width
	mask   uint32 // IRQ_MASK as last written
	posted bool   // the page-in half is posted
	irqAt  int64
	stuck  int // interrupts in a row that left FSR set

	// The functions that are posted, each allocated once, so that posting does not allocate.
	halfFunc        func() // pageInHalf
	sendAgainFunc   func() // sendAgain
	sendAgainPosted bool

	slots   [device.Slots]slot
	demands []demand
	ranges  []pagein.Range
	asks    []ask
	instant []answer

	freeBlocks []*block
	freePages  []*page
	freeCalls  []*call

	log     log
	stats   Stats
	observe func(*Record)

	observePageIn func(*PageIn)
}

// demand is a page that a new wait needs, with its policy's range.
type demand struct {
	slot  uint8
	write bool
	page  uint64
	end   uint64
}

// answer is a block that waits for nothing and is answered at the end of the round.
type answer struct {
	slot  uint8
	block *block
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

// reset clears the tables of a slot and keeps their memory.
func (d *Driver) reset(s *slot) {
	if s.blocks == nil {
		s.blocks, s.pages, s.failing = map[blockKey]*block{}, map[pageKey]*page{}, map[pageKey]failure{}
	}
	for _, p := range s.pages {
		d.dropPage(s, p)
	}
	for _, b := range s.blocks {
		d.dropBlock(s, b)
	}
	clear(s.failing)
	s.live = false
	s.target = Target{}
	s.ahead = pagein.Ahead{}
	s.resend = s.resend[:0]
	s.queued = s.queued[:0]
	s.calls = s.calls[:0]
	s.fars, s.hint, s.stalled = 0, 0, false
}

// block returns the block of a transaction, new if there is none; nil if the table is full.
func (d *Driver) block(s *slot, k blockKey) *block {
	b := s.blocks[k]
	if b == nil && len(s.blocks) < maxBlocks {
		if n := len(d.freeBlocks); n > 0 {
			b, d.freeBlocks = d.freeBlocks[n-1], d.freeBlocks[:n-1]
		} else {
			b = new(block)
		}
		*b = block{blockKey: k, waits: b.waits[:0]}
		s.blocks[k] = b
	}
	return b
}

func (d *Driver) dropBlock(s *slot, b *block) {
	delete(s.blocks, b.blockKey)
	b.unsent = false
	d.freeBlocks = append(d.freeBlocks, b)
}

// wait makes a block wait for a page; false if the table is full.
func (d *Driver) wait(s *slot, k pageKey, b *block, record uint64) bool {
	if s.waits == maxWaits {
		return false
	}
	p := s.pages[k]
	if p == nil {
		if n := len(d.freePages); n > 0 {
			p, d.freePages = d.freePages[n-1], d.freePages[:n-1]
		} else {
			p = new(page)
		}
		*p = page{pageKey: k, waits: p.waits[:0]}
		s.pages[k] = p
	}
	p.waits = append(p.waits, wait{b, record, s.began})
	s.waits++
	if b != nil {
		b.waits = append(b.waits, p)
	}
	return true
}

// dropPage forgets a page that has no waiters.
func (d *Driver) dropPage(s *slot, p *page) {
	s.waits -= len(p.waits)
	delete(s.pages, p.pageKey)
	d.freePages = append(d.freePages, p)
}

// unwait removes all waits of a block.
func (d *Driver) unwait(s *slot, b *block) {
	for _, p := range b.waits {
		n := len(p.waits)
		p.waits = slices.DeleteFunc(p.waits, func(w wait) bool { return w.block == b })
		s.waits -= n - len(p.waits)
		if len(p.waits) == 0 {
			d.dropPage(s, p)
		}
	}
	b.waits = b.waits[:0]
}

// record stores a fault's record in place of the oldest. If the oldest has no final outcome yet,
// it never reaches Config.Observe, which is counted.
func (d *Driver) record(r Record) uint64 {
	if d.observe != nil && d.log.next >= RecordDepth && !d.log.slot(d.log.next).shown {
		d.stats.Unrecorded++
	}
	return d.log.add(r)
}

// final passes a record with a final outcome to the observer.
func (d *Driver) final(r *Record) {
	if d.observe != nil && !r.shown {
		r.shown = true
		d.observe(r)
	}
}

// Records returns the last n faults, oldest first.
func (d *Driver) Records(n int) []Record {
	have := min(d.log.next, RecordDepth)
	if n < 0 || uint64(n) > have {
		n = int(have)
	}
	out := make([]Record, 0, n)
	for i := d.log.next - uint64(n); i < d.log.next; i++ {
		out = append(out, *d.log.slot(i))
	}
	return out
}

// Slot returns a slot's counters.
func (d *Driver) Slot(n int) Counts { return d.slots[n].counts }

// Stats returns the counters.
func (d *Driver) Stats() Stats {
	s := d.stats
	for i := range d.slots {
		s.Slots[i] = d.slots[i].counts
		s.Total.Add(&d.slots[i].counts)
	}
	return s
}

// pagedIn reports a completed call, before the faults that waited for it.
func (d *Driver) pagedIn(s *slot, c *call, got uint64) {
	if d.observePageIn == nil {
		return
	}
	d.observePageIn(&PageIn{
		Page: device.VA(c.start << device.PageShift), Slot: c.slot, PDID: s.target.PDID,
		Method: s.target.Method, Policy: s.target.Policy,
		Pages: int(c.end - c.start), Got: bits.OnesCount64(got), New: bits.OnesCount64(c.op.Paged.New&got) + c.op.Paged.Beside,
		Write: c.write, Kind: c.op.Paged.Kind, Err: c.op.Paged.Err, Started: c.op.Started, Ended: c.op.Ended,
	})
}
