package fault

import (
	"cmp"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/space"
)

// Sizes of a slot's tables (defined by this project). They limit the driver's memory for one
// domain whose page-ins hang. Entries that do not fit are dropped and counted, and the sender's
// guard recovers them.
const (
	maxBlocks  = 1024
	maxWaits   = 2048
	maxSpans   = 256 // limit for spans that no block waits for
	maxFailing = 256 // pages whose failures are remembered
	farDepth   = 8   // faults reported only by FAR, between two rounds
	blockPages = 8   // records that a block keeps: four pages, two of the notification, some spare
)

// blockKey identifies a transaction; tx: a source fault of this node.
type blockKey struct {
	source      device.NodeID
	transaction device.TransactionID
	tx          bool
}

// block is a transaction that waits for pages.
type block struct {
	blockKey
	failed    bool // a page is unresolvable
	memory    bool // because it is not made resident, rather than because of its address
	abandoned bool // a page could not be paged in for now
	instant   bool // in Driver.instant
	unsent    bool // in slot.resend
	tries     uint8
	// sequence is the newest of its entries: the receive part drops packets of older ones, and
	// their RAPF would be stale.
	sequence device.Sequence
	waits    []*page // not yet settled
	recs     [blockPages]uint64
	nrecs    uint8
}

func (b *block) remember(record uint64) {
	if int(b.nrecs) < len(b.recs) {
		b.recs[b.nrecs] = record
		b.nrecs++
	}
}

// pageKey identifies a page and the kind of access.
type pageKey struct {
	page  uint64
	write bool
}

// page is a page with waiters.
type page struct {
	pageKey
	tries uint8 // page-ins that failed for a temporary reason
	waits []wait
}

// waitedBy reports whether a block waits for the page.
func (p *page) waitedBy(k blockKey) bool {
	return slices.ContainsFunc(p.waits, func(w wait) bool { return w.key() == k })
}

// endedBy returns how many of the waits, from the first, a call's failure ends. It does not end
// waits that started after the call: the call may have seen an earlier mapping.
func (p *page) endedBy(c *call) int {
	n := slices.IndexFunc(p.waits, func(w wait) bool { return w.began >= c.number })
	if n < 0 {
		n = len(p.waits)
	}
	return n
}

// wait ties a page to a block, or to none (a source fault reported only by FAR).
type wait struct {
	block  *block
	record uint64
	began  uint64 // slot.began when the wait started: a call with a higher number began after it
}

// key identifies the waiting block; zero: no block.
func (w *wait) key() blockKey {
	if w.block == nil {
		return blockKey{}
	}
	return w.block.blockKey
}

// failure is remembered about a page that cannot be paged in, across the retransmissions of the
// blocks that need it.
type failure struct {
	since, last int64  // of the equal failures, in ns
	cause       string // the error; "": the page is resident, but faults again
	times       int

	// If cause is "": the block that faults there, and how often others have since.
	of     blockKey
	others int
}

// span is a range of pages to page in, [start, end).
type span struct {
	start, end uint64
	write      bool
	size       uint8 // of the next slice, once the first has completed; 0: it has not
}

func (p *span) has(k pageKey) bool { return p.write == k.write && p.start <= k.page && k.page < p.end }

// call is one page-in for a slice of a span. The machine uses only op; the rest belongs to the
// owning goroutine.
type call struct {
	op space.Op
	span
	slot   int
	gen    uint32
	behind bool   // not the first slice of its span: no block waits for its pages yet
	began  int64  // when it was launched
	number uint64 // slot.began at that time
	stuck  bool   // it has run for more than stuckTime
}

// slot is the driver's state for one domain.
type slot struct {
	live   bool
	gen    uint32 // counts the domains: a call of an older one is ignored
	target Target
	port   *packetizer.Port
	counts Counts
	ahead  pagein.Ahead // state of policy Adaptive

	blocks  map[blockKey]*block
	pages   map[pageKey]*page
	waits   int // of all pages
	failing map[pageKey]failure
	resend  []*block

	// Pages to bring in: first slices of new faults, and the pages behind them that policies add.
	queued []span
	calls  []*call // in flight
	began  uint64  // calls started since the beginning

	far       [farDepth]pageKey // faults reported only by FAR
	fars      int
	stalled   bool // an access waits for RESUME, because of page stall
	stall     pageKey
	hint      device.VA // FAR of the last fault, exact
	hintWrite bool
}

// waitsFor returns the record with which block b, or none (nil), waits for a page.
func (s *slot) waitsFor(k pageKey, b *block) (record uint64, ok bool) {
	if p := s.pages[k]; p != nil {
		for _, w := range p.waits {
			if w.block == b {
				return w.record, true
			}
		}
	}
	return 0, false
}

// overlap returns the lowest span queued or in flight that meets [start, end). Of a stuck call
// only the first page counts as in flight: it is unknown which of its pages it hangs in.
func (s *slot) overlap(start, end uint64, write bool) (span, bool) {
	low, ok := span{start: end}, false
	look := func(p *span) {
		if p.write == write && p.start < end && p.end > start && (!ok || p.start < low.start) {
			low, ok = *p, true
		}
	}
	for _, c := range s.calls {
		if !c.stuck || c.end == c.start+1 {
			look(&c.span)
		}
	}
	for i := range s.queued {
		look(&s.queued[i])
	}
	return low, ok
}

// queue adds the parts of [start, end) that are not queued or in flight.
func (s *slot) queue(start, end uint64, write bool) {
	for start < end {
		o, ok := s.overlap(start, end, write)
		if !ok {
			s.push(span{start: start, end: end, write: write})
			return
		}
		if start < o.start {
			s.push(span{start: start, end: o.start, write: write})
		}
		start = o.end
	}
}

// requeue queues each page of a span that has waiters by itself.
func (s *slot) requeue(p span) {
	for _, k := range s.waited(p) {
		s.queue(k.page, k.page+1, k.write)
	}
}

// waited returns the pages of a span that have waiters, in order.
func (s *slot) waited(p span) []pageKey {
	var list []pageKey
	for k := range s.pages {
		if p.has(k) {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b pageKey) int { return cmp.Compare(a.page, b.page) })
	return list
}

// push adds a span; if too many are queued, only up to its last page that has waiters.
func (s *slot) push(p span) {
	if len(s.queued) >= maxSpans {
		list := s.waited(p)
		if p.end = p.start; len(list) > 0 {
			p.end = list[len(list)-1].page + 1
		}
	}
	if p.start < p.end {
		s.queued = append(s.queued, p)
	}
}

// addFAR records a fault reported only by FSR and FAR; false if it was dropped.
func (s *slot) addFAR(k pageKey) bool {
	if slices.Contains(s.far[:s.fars], k) {
		return true
	}
	if s.fars == farDepth {
		s.counts.Dropped++
		return false
	}
	s.far[s.fars] = k
	s.fars++
	return true
}
