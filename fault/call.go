package fault

import (
	"errors"
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// Slices (design.md: up to 16 pages inline, more by a pager on the other CPU in
// slices of 16 to 64 pages).
const (
	inlinePages = 16
	minSlice    = 16
	maxSlice    = 64
	// pageTries: how often a page that could not be had for a passing reason is
	// tried before its block is left to the guard (ours).
	pageTries = 3
)

// call is one Pager call. Run sees only what was put into it; Done runs on the
// owning goroutine.
type call struct {
	d     *Driver
	now   func() int64
	slot  int
	gen   uint32
	pager Pager
	lane  int
	start uint64 // page
	pages int
	write bool

	res            gup.Result
	started, ended int64
}

// Run pages in. It runs anywhere.
func (c *call) Run() {
	c.started = c.now()
	c.res = c.pager.PageIn(device.VA(c.start<<device.PageShift), c.pages, c.write)
	c.ended = c.now()
}

// Done takes the result.
func (c *call) Done() {
	d := c.d
	if s := &d.slots[c.slot]; s.gen == c.gen {
		d.complete(s, c)
		d.kick(s)
	}
	*c = call{d: d, now: c.now}
	d.calls = append(d.calls, c)
}

// kick starts what can be started: the first slice of a new fault in the short
// lane, what policies add in the long one. The long one goes first, so that its
// worker wakes while the short one is done inline.
func (d *Driver) kick(s *slot) {
	if !s.live {
		return
	}
	first := len(s.fresh) > 0 && !s.lanes[short].busy
	if first {
		s.lanes[short] = lane{busy: true, cur: s.nextFresh()}
	}
	if len(s.rest) > 0 && !s.lanes[long].busy {
		s.lanes[long] = lane{busy: true, cur: s.nextRest()}
		d.launch(s, long)
	}
	if first {
		d.launch(s, short)
	}
}

func (d *Driver) launch(s *slot, l int) {
	var c *call
	if n := len(d.calls); n > 0 {
		c = d.calls[n-1]
		d.calls = d.calls[:n-1]
	} else {
		c = &call{d: d, now: d.now}
	}
	cur := s.lanes[l].cur
	c.slot, c.gen, c.pager, c.lane = s.target.Slot, s.gen, s.target.Pager, l
	c.start, c.pages, c.write = cur.start, int(cur.end-cur.start), cur.write
	d.bus.Do(c.slot, c, l == long || s.target.Method == Populate)
}

// nextFresh takes the first slice of the oldest fresh span; what remains of the
// span goes on with the others' rests.
func (s *slot) nextFresh() span {
	p := s.fresh[0]
	s.fresh = s.fresh[:copy(s.fresh, s.fresh[1:])]
	if s.target.Method == Populate {
		// Each call is a question to the process and its answer: what has come
		// together since the last one is asked for together.
		p = s.joined(p)
		if p.end-p.start <= maxSlice {
			return p
		}
	}
	if p.end-p.start <= inlinePages {
		return p
	}
	rest := span{start: p.start + inlinePages, end: p.end, write: p.write, size: minSlice}
	p.end = rest.start
	if len(s.rest) >= maxSpans {
		rest.end = s.lastWait(rest.start, rest.end, rest.write)
	}
	if rest.start < rest.end {
		s.rest = append(s.rest, rest)
	}
	return p
}

// joined takes the fresh spans that continue p, up to maxSlice pages in all.
func (s *slot) joined(p span) span {
	for i := 0; i < len(s.fresh); {
		q := s.fresh[i]
		if q.write != p.write || q.start != p.end && q.end != p.start || q.end-q.start+p.end-p.start > maxSlice {
			i++
			continue
		}
		p.start, p.end = min(p.start, q.start), max(p.end, q.end)
		s.fresh = append(s.fresh[:i], s.fresh[i+1:]...)
		i = 0 // one before it may continue it now
	}
	return p
}

// nextRest takes a slice of the oldest rest. Slices grow from 16 to 64 pages, so
// that the blocks at the front flow early and the calls are few; none is left
// shorter than 16 but where the whole rest is.
func (s *slot) nextRest() span {
	p := &s.rest[0]
	cur := *p
	left := p.end - p.start
	n := uint64(p.size)
	if left < n+minSlice {
		if n = left; left > maxSlice {
			n = left - minSlice
		}
	}
	cur.end = cur.start + n
	p.start = cur.end
	p.size = min(2*p.size, maxSlice)
	if p.start == p.end {
		s.rest = s.rest[:copy(s.rest, s.rest[1:])]
	}
	return cur
}

// complete settles what waited for the pages of a slice.
func (d *Driver) complete(s *slot, c *call) {
	asked := s.lanes[c.lane].cur
	s.lanes[c.lane] = lane{}
	all := ^uint64(0) >> (64 - uint(c.pages))
	got := c.res.Resident & all
	if got != 0 {
		s.counts.PageIns++
		s.counts.Pages += uint64(bits.OnesCount64(got))
		switch c.res.Kind {
		case gup.Major:
			s.counts.Major++
		case gup.Permission:
			s.counts.Permission++
		default:
			s.counts.Minor++
		}
	}
	for i := range c.pages {
		page := c.start + uint64(i)
		switch {
		case got>>uint(i)&1 != 0:
			d.settle(s, c, page, Resolved)
		case i > 0:
			// Only the first page's reason is known: ask for this one by itself.
			if s.waiting(page, c.write) {
				s.queue(page, page+1, c.write)
			}
		case final(c.res.Err):
			if s.waiting(page, c.write) {
				s.counts.Unresolvable++
			}
			d.settle(s, c, page, Failed)
		default:
			s.counts.Transient++
			if d.again(s, c, page) {
				s.queue(page, page+1, c.write)
			}
		}
	}
	if got == all {
		return
	}
	// The mapping ends here, or has a hole: the rest of the range was only a
	// guess. Pages of it that somebody waits for are asked for by themselves.
	for i := range s.rest {
		if p := s.rest[i]; p.start == asked.end && p.write == c.write {
			s.rest = append(s.rest[:i], s.rest[i+1:]...)
			d.requeue(s, p.start, p.end, p.write)
			break
		}
	}
}

// final tells whether a page-in that failed would fail again.
func final(err error) bool {
	return errors.Is(err, gup.ErrUnmapped) || errors.Is(err, gup.ErrDenied) ||
		errors.Is(err, gup.ErrGone) || errors.Is(err, gup.ErrPermission) || errors.Is(err, gup.ErrPastEnd)
}

// requeue asks by itself for each page of [start, end) that somebody waits for.
func (d *Driver) requeue(s *slot, start, end uint64, write bool) {
	for i := range s.waits {
		if w := &s.waits[i]; w.used && w.write == write && start <= w.page && w.page < end {
			s.queue(w.page, w.page+1, write)
		}
	}
}

// again tells whether a page that could not be had for now is to be tried again.
// Who has waited too often for it is given up, to the guard; where most likely it
// will never be there, for good.
func (d *Driver) again(s *slot, c *call, page uint64) bool {
	try, give := false, false
	for i := s.byPage[pageBucket(page)]; i != none; i = s.waits[i].next {
		if w := &s.waits[i]; w.page == page && w.write == c.write {
			if w.tries++; w.tries < pageTries {
				try = true
			} else {
				give = true
			}
		}
	}
	if give {
		o := Unsent
		if errors.Is(c.res.Err, gup.ErrNoFilePage) {
			o = Failed
			s.counts.Unresolvable++
		}
		d.settle(s, c, page, o)
		return false
	}
	return try
}

// settle ends all waits for a page with an outcome. A block that waits for
// nothing more is answered.
func (d *Driver) settle(s *slot, c *call, page uint64, o Outcome) {
	p := &s.byPage[pageBucket(page)]
	for *p != none {
		i := *p
		w := &s.waits[i]
		if w.page != page || w.write != c.write {
			p = &w.next
			continue
		}
		*p = w.next
		if r := d.log.at(w.record); r != nil {
			r.Started, r.Resident, r.Kind, r.Outcome = c.started, c.ended, c.res.Kind, o
		}
		bi, record := w.block, w.record
		*w = wait{next: s.freeWait}
		s.freeWait = i
		if bi == none {
			if r := d.log.at(record); r != nil {
				d.final(r)
			}
			continue
		}
		b := &s.blocks[bi]
		b.failed = b.failed || o == Failed
		b.abandoned = b.abandoned || o == Unsent
		if b.waits--; b.waits == 0 {
			d.finish(s, bi)
		}
	}
}
