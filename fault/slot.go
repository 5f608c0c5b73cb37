package fault

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/packetizer"
)

// Sizes of a slot's tables (ours). They bound what one domain whose page-ins
// hang may make the driver remember; what does not fit is dropped, counted, and
// brought back by the sender's guard.
const (
	maxBlocks  = 1024
	maxWaits   = 2048
	maxSpans   = 256 // spans that nobody waits for are not queued beyond
	farDepth   = 8   // source faults told by FAR, between two rounds
	blockTable = 64  // hash buckets
	pageTable  = 256
	blockPages = 8 // records a block keeps: four pages, two of the notification, to spare
)

const none = -1

// block is a transaction that waits for pages.
type block struct {
	used        bool
	tx          bool // a source fault of this node
	failed      bool // a page is unresolvable
	abandoned   bool // a page could not be had for now
	instant     bool // in Driver.instant
	unsent      bool // in slot.resend
	tries       uint8
	source      device.NodeID
	transaction device.TransactionID
	// sequence is the newest that an entry had: the receive part drops packets
	// of older ones, and their RAPF would be stale.
	sequence device.Sequence
	waits    int32 // pages not settled yet
	next     int32 // in its bucket, or in the free list
	recs     [blockPages]uint64
	nrecs    uint8
}

// wait ties a page to a block, or to none (a source fault told by FAR).
type wait struct {
	used   bool
	write  bool
	tries  uint8
	block  int32
	page   uint64
	record uint64
	next   int32
}

// span is a range of pages to bring in, [start, end).
type span struct {
	start, end uint64
	write      bool
	size       uint8 // of the next slice, once the first is done
}

// lane is a page-in under way. A slot has two: a short one, which the owning
// goroutine may do itself, and a long one beside it.
type lane struct {
	busy bool
	cur  span
}

const (
	short = 0
	long  = 1
)

// slot is what the driver knows of one domain.
type slot struct {
	live   bool
	gen    uint32 // counts the domains: a Call of an older one is ignored
	target Target
	port   *packetizer.Port
	counts Counts

	blocks    []block
	waits     []wait
	freeBlock int32
	freeWait  int32
	byBlock   [blockTable]int32
	byPage    [pageTable]int32
	resend    []int32

	fresh, rest []span // first slices, and what policies add
	lanes       [2]lane

	far       [farDepth]device.VA
	fars      int
	hint      device.VA // FAR of the last fault, exact
	hintWrite bool
}

// reset empties the tables and keeps their memory.
func (s *slot) reset() {
	s.live = false
	s.target = Target{}
	s.blocks, s.waits = s.blocks[:0], s.waits[:0]
	s.freeBlock, s.freeWait = none, none
	for i := range s.byBlock {
		s.byBlock[i] = none
	}
	for i := range s.byPage {
		s.byPage[i] = none
	}
	s.resend = s.resend[:0]
	s.fresh, s.rest = s.fresh[:0], s.rest[:0]
	s.lanes = [2]lane{}
	s.fars, s.hint = 0, 0
}

func blockBucket(n device.NodeID, t device.TransactionID) uint32 {
	return (uint32(n)*31 + uint32(t)) % blockTable
}

func pageBucket(page uint64) uint64 { return page % pageTable }

// block finds the block of a transaction or makes it; none when the table is
// full.
func (s *slot) block(source device.NodeID, t device.TransactionID, tx bool) int32 {
	h := blockBucket(source, t)
	for i := s.byBlock[h]; i != none; i = s.blocks[i].next {
		if b := &s.blocks[i]; b.source == source && b.transaction == t && b.tx == tx {
			return i
		}
	}
	i := s.freeBlock
	if i != none {
		s.freeBlock = s.blocks[i].next
	} else if len(s.blocks) < maxBlocks {
		i = int32(len(s.blocks))
		s.blocks = append(s.blocks, block{})
	} else {
		return none
	}
	s.blocks[i] = block{used: true, tx: tx, source: source, transaction: t, next: s.byBlock[h]}
	s.byBlock[h] = i
	return i
}

func (s *slot) dropBlock(i int32) {
	b := &s.blocks[i]
	p := &s.byBlock[blockBucket(b.source, b.transaction)]
	for *p != i {
		p = &s.blocks[*p].next
	}
	*p = b.next
	*b = block{next: s.freeBlock}
	s.freeBlock = i
}

// find gives the wait of a block for a page; none where it has none.
func (s *slot) find(page uint64, write bool, block int32) int32 {
	for i := s.byPage[pageBucket(page)]; i != none; i = s.waits[i].next {
		if w := &s.waits[i]; w.page == page && w.write == write && w.block == block {
			return i
		}
	}
	return none
}

// add has a block wait for a page; false when the table is full.
func (s *slot) add(page uint64, write bool, block int32, record uint64) bool {
	i := s.freeWait
	if i != none {
		s.freeWait = s.waits[i].next
	} else if len(s.waits) < maxWaits {
		i = int32(len(s.waits))
		s.waits = append(s.waits, wait{})
	} else {
		return false
	}
	h := pageBucket(page)
	s.waits[i] = wait{used: true, write: write, block: block, page: page, record: record, next: s.byPage[h]}
	s.byPage[h] = i
	if block != none {
		s.blocks[block].waits++
	}
	return true
}

// waiting tells whether anybody waits for a page.
func (s *slot) waiting(page uint64, write bool) bool {
	for i := s.byPage[pageBucket(page)]; i != none; i = s.waits[i].next {
		if w := &s.waits[i]; w.page == page && w.write == write {
			return true
		}
	}
	return false
}

// covered tells whether a page is in a span queued or under way.
func (s *slot) covered(page uint64, write bool) bool {
	_, ok := s.overlap(page, page+1, write)
	return ok
}

// overlap gives the lowest span queued or under way that meets [start, end).
func (s *slot) overlap(start, end uint64, write bool) (span, bool) {
	low, ok := span{start: end}, false
	look := func(p *span) {
		if p.write == write && p.start < end && p.end > start && (!ok || p.start < low.start) {
			low, ok = *p, true
		}
	}
	for i := range s.lanes {
		if l := &s.lanes[i]; l.busy {
			look(&l.cur)
		}
	}
	for i := range s.fresh {
		look(&s.fresh[i])
	}
	for i := range s.rest {
		look(&s.rest[i])
	}
	return low, ok
}

// queue adds [start, end) to the fresh spans, without what is queued or under
// way already.
func (s *slot) queue(start, end uint64, write bool) {
	for start < end {
		o, ok := s.overlap(start, end, write)
		if !ok {
			s.push(start, end, write)
			return
		}
		if start < o.start {
			s.push(start, o.start, write)
		}
		start = o.end
	}
}

func (s *slot) push(start, end uint64, write bool) {
	if len(s.fresh) >= maxSpans {
		if end = s.lastWait(start, end, write); start == end {
			return
		}
	}
	s.fresh = append(s.fresh, span{start: start, end: end, write: write})
}

// lastWait cuts [start, end) behind the last page that somebody waits for.
func (s *slot) lastWait(start, end uint64, write bool) uint64 {
	last := start
	for i := range s.waits {
		if w := &s.waits[i]; w.used && w.write == write && start <= w.page && w.page < end {
			last = max(last, w.page+1)
		}
	}
	return last
}

func (s *slot) addFAR(va device.VA) {
	for _, f := range s.far[:s.fars] {
		if f.Page() == va.Page() {
			return
		}
	}
	if s.fars == farDepth {
		s.counts.Dropped++
		return
	}
	s.far[s.fars] = va
	s.fars++
}
