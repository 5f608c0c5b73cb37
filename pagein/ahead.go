package pagein

// Limits of Ahead (ours).
const (
	// aheadStreams is how many streams of a domain are followed: the processes that
	// write there at one time, roughly.
	aheadStreams = 8
	// aheadLeast and aheadMost are what a stream has brought in ahead at first and in
	// the end, pages: it doubles each time that it was right.
	aheadLeast, aheadMost = 4, 64
	// aheadReach is the longest stride, pages.
	aheadReach = 1024
	// aheadCredit is how many pages may have been brought in for nothing at the start,
	// and aheadShare what part of the pages that were of use may be besides.
	aheadCredit, aheadShare = 16, 8
	// aheadSample is how many pages of transfers were brought in when it is judged
	// whether these are worth their while: where fewer than a quarter were absent,
	// each fault brings in its page alone.
	aheadSample = 64
)

// Ahead is what policy Adaptive knows of a domain: whether the rest of a transfer is
// absent, too, where a page of it is, and which streams its faults form. A stream is of
// faults that follow one another at one distance, next to one another or further apart.
// It belongs to one goroutine.
//
// A page that is brought in ahead makes no fault, and so nobody sees its use. It counts
// as used when the stream faults at the page behind all that was brought in for it, and
// as unused when the stream is given up. Pages that are unused or whose use is not
// known yet are never more than 16 and an eighth of those that were asked for or used.
type Ahead struct {
	streams [aheadStreams]stream
	turn    uint64
	useful  uint64 // pages that were asked for, and those brought in ahead that were used
	asked   uint64 // pages that calls were to bring in, and of these those that were absent
	absent  uint64
	sparse  bool // most were there

	Brought uint64 // ahead of their use
	Unused  uint64 // of these, those of streams that went another way
}

type stream struct {
	write        bool
	seen         uint64 // turn of its last fault, 0: there is no stream
	start, end   uint64 // of its last fault, pages
	stride       uint64 // from one start to the next, 0: not known
	next         uint64 // where it faults next, if it goes on as it did
	window, open uint64 // pages to bring in ahead; those brought in and not known to be used
}

// Range is of pages, [Start, End).
type Range struct{ Start, End uint64 }

// Paged takes what a call brought in: of so many pages those that were absent.
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

// Fault takes a fault of a page, rest pages before the end of its transfer. It gives how
// many of these to bring in, and appends to out what besides, in order.
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
		// Of what was asked for already, by an entry of the same transfer or because
		// the page was taken away.
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

// credit gives how many pages more may turn out to be of no use.
func (a *Ahead) credit() uint64 {
	risk := a.risk()
	if may := aheadCredit + a.useful/aheadShare; may > risk {
		return may - risk
	}
	return 0
}

// risk gives how many pages were of no use, or may be.
func (a *Ahead) risk() uint64 {
	n := a.Unused
	for i := range a.streams {
		n += a.streams[i].open
	}
	return n
}

// inside tells whether a page is one of those that were brought in ahead.
func (s *stream) inside(page uint64) bool {
	return page > s.start && page < s.next && (page-s.start)%s.stride < s.end-s.start
}

// find gives the stream that a fault continues, or else the one whose place a new
// stream may have.
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
		// The nearest before it, of those that it is within reach of.
		if start > o.start && start-o.start <= aheadReach && (s == nil || o.start > s.start) {
			s = o
		}
	}
	if s != nil {
		return s, true
	}
	return oldest, false
}
