package pagein

// Limits of Ahead. Values are defined by this project.
const (
	// aheadStreams is how many streams of a domain are tracked: roughly the number of processes
	// that write there at one time.
	aheadStreams = 8
	// aheadLeast and aheadMost are a stream's first and largest read-ahead, in pages: it doubles
	// each time the prediction was right.
	aheadLeast, aheadMost = 4, 64
	// aheadReach is the longest stride, in pages.
	aheadReach = 1024
	// aheadCredit is how many unused pages are allowed at the start, and aheadShare the part of
	// the useful pages that is allowed in addition.
	aheadCredit, aheadShare = 16, 8
	// aheadSample is how many pages of transfers are paged in before deciding whether to page in
	// whole transfers: if fewer than a quarter were absent, each fault pages in only its own
	// page.
	aheadSample = 64
)

// Ahead is the state of policy Adaptive for one domain: whether the rest of a transfer is usually
// absent when one of its pages is, and which streams its faults form. A stream is a sequence of
// faults at a constant stride. Ahead belongs to one goroutine.
//
// A page that was paged in ahead causes no fault, so its use is not visible. It counts as used
// when the stream faults at the page behind all its read-ahead, and as unused when the stream is
// replaced. The pages that are unused or not yet known to be used never exceed 16 plus an eighth
// of those that were requested or used.
type Ahead struct {
	streams [aheadStreams]stream
	turn    uint64
	useful  uint64 // pages requested, and pages read ahead that were used
	asked   uint64 // pages of calls; absent counts those of them that were absent
	absent  uint64
	sparse  bool // most of them were present

	Brought uint64 // pages read ahead
	Unused  uint64 // of these, those whose stream took another direction
}

type stream struct {
	write        bool
	seen         uint64 // turn of its last fault, 0: unused entry
	start, end   uint64 // of its last fault, pages
	stride       uint64 // from one start to the next, 0: unknown
	next         uint64 // where it faults next if the stride stays the same
	window, open uint64 // pages to read ahead; pages read ahead and not yet known to be used
}

// Range is a range of pages, [Start, End).
type Range struct{ Start, End uint64 }

// Paged records a completed call for pages pages, of which absent were absent.
func (a *Ahead) Paged(pages, absent uint64) {
	if pages == 1 {
		return
	}
	a.asked += pages
	a.absent += absent
	if a.asked >= aheadSample {
		a.sparse = 4*a.absent < a.asked
		a.asked, a.absent = 0, 0
	}
}

// Fault handles a fault at page start, rest pages before the end of its transfer. It returns how
// many of these pages to page in, and appends to out the ranges to read ahead, in order.
func (a *Ahead) Fault(start, rest uint64, write bool, out []Range) (uint64, []Range) {
	s, known := a.find(start, write)
	if known && start == s.end {
		a.sparse = false
	}
	n := rest
	if a.sparse {
		n = 1
	}
	if known && start >= s.start && start < s.end || s.stride != 0 && s.inside(start) {
		// A page that was already requested, by another entry of the same transfer, or that was
		// evicted since.
		return n, out
	}
	a.turn++
	a.useful += n
	end, step := start+n, start-s.start
	if !known {
		a.Unused += s.open
		*s = stream{write: write, seen: a.turn, start: start, end: end}
		return n, out
	}
	switch {
	case s.stride != 0 && start == s.next:
		a.useful += s.open
		s.window = min(max(2*s.window, aheadLeast), aheadMost)
		step = s.stride
	case start == s.end:
		a.Unused += s.open
		s.window, step = aheadLeast, n
	default:
		a.Unused += s.open
		s.window = 0
	}
	s.seen, s.start, s.end, s.stride, s.open = a.turn, start, end, step, 0
	s.next = start + step
	if s.window == 0 || n > step {
		return n, out
	}
	for most := min(s.window, a.credit()); s.open+n <= most; s.next += step {
		s.open += n
		a.Brought += n
		if i := len(out) - 1; i >= 0 && out[i].End == s.next {
			out[i].End += n
		} else {
			out = append(out, Range{s.next, s.next + n})
		}
	}
	return n, out
}

// credit returns how many more pages may turn out to be unused.
func (a *Ahead) credit() uint64 {
	risk := a.risk()
	if may := aheadCredit + a.useful/aheadShare; may > risk {
		return may - risk
	}
	return 0
}

// risk returns how many pages were unused or may be.
func (a *Ahead) risk() uint64 {
	n := a.Unused
	for i := range a.streams {
		n += a.streams[i].open
	}
	return n
}

// inside reports whether a page was read ahead.
func (s *stream) inside(page uint64) bool {
	return page > s.start && page < s.next && (page-s.start)%s.stride < s.end-s.start
}

// find returns the stream that a fault continues or, if there is none, the entry to use for a new
// stream.
func (a *Ahead) find(start uint64, write bool) (s *stream, known bool) {
	oldest := &a.streams[0]
	for i := range a.streams {
		o := &a.streams[i]
		if o.seen < oldest.seen {
			oldest = o
		}
		if o.seen == 0 || o.write != write {
			continue
		}
		if o.stride != 0 && (start == o.next || o.inside(start)) || start >= o.start && start <= o.end {
			return o, true
		}
		// The nearest stream before it, among those that have it within reach.
		if start > o.start && start-o.start <= aheadReach && (s == nil || o.start > s.start) {
			s = o
		}
	}
	if s != nil {
		return s, true
	}
	return oldest, false
}
