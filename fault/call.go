package fault

import (
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
)

// Slices (defined by this project: up to 16 pages inline, more by a pager on the other CPU in
// slices of 16 to 64 pages).
const (
	inlinePages = 16
	minSlice    = 16
	maxSlice    = 64
	// pageTries is how often a page that fails for a temporary reason is tried before its block
	// is left to the guard (defined by this project).
	pageTries = 3
)

// Limits of hanging and failing page-ins. Values are defined by this project.
const (
	// stuckTime is how long a call may run before it counts as stuck and others run beside it. A
	// slow disk responds sooner.
	stuckTime = int64(100 * time.Millisecond)
	// maxStuck limits the stuck calls of a domain: each holds a thread.
	maxStuck = 8
	// finalTime is how long a page-in may fail in the same way before the failure counts as
	// final.
	finalTime = int64(time.Second)
	// forgetTime is how long a failure is remembered: longer than a sender's longest guard
	// time-out.
	forgetTime = int64(10 * time.Second)
	// maxVain is how often in a row a page at which a block faults may be found resident: beyond
	// that, something else keeps the device from accessing it.
	maxVain = 128
	// othersInVain is how often other blocks may fault at the page before another block is
	// counted instead: the first one has ended. A sender retransmits up to 1024 times
	// (spec/messages.md 2).
	othersInVain = 512
	// vainAgain is the number of these after which the page is to be mapped again (space.Remap).
	// Earlier ones may come from accesses that were refused before the page was resident.
	vainAgain = maxVain / 2
)

// ErrInaccessible means that a page is resident but its bytes cannot be moved: memory that the
// kernel reserves to its process (memfd_secret), memory of a device, or a page whose mapping the
// device refuses.
var ErrInaccessible = errors.New("the page is resident, but the kernel cannot access it (secret memory or device memory), or the device refuses its mapping")

// done handles the result of a call, and frees it.
func (d *Driver) done(c *call) {
	if s := &d.slots[c.slot]; s.gen == c.gen {
		s.calls = slices.DeleteFunc(s.calls, func(o *call) bool { return o == c })
		d.complete(s, c)
		d.startNext(s)
	}
	d.freeCalls = append(d.freeCalls, c)
}

// startNext starts what can be started: the first slice of a new fault, which the owning goroutine may
// page in itself, and concurrently one slice that policies add. The latter starts first, so that
// its worker wakes while the other runs inline.
func (d *Driver) startNext(s *slot) {
	if !s.live {
		return
	}
	first, behind := true, true
	if len(s.calls) > 0 {
		if first, behind = d.room(s); !first && !behind {
			return
		}
	}
	var p span
	if first {
		p, first = s.nextFirst()
	}
	if behind {
		if q, ok := s.nextBehind(); ok {
			d.launch(s, q, true)
		}
	}
	if first {
		d.launch(s, p, false)
	}
}

// room reports whether a first slice, and one behind it, may be started: one of each at a time,
// not counting stuck calls. The pages of a stuck call behind its first page are requested one by
// one.
func (d *Driver) room(s *slot) (first, behind bool) {
	first, behind = true, true
	now, stuck := d.now(), 0
	for _, c := range s.calls {
		if !c.stuck && now-c.began > stuckTime {
			c.stuck = true
			s.counts.Stuck++
			if c.end > c.start+1 {
				s.requeue(c.span)
			}
		}
		switch {
		case c.stuck:
			stuck++
		case c.behind:
			behind = false
		default:
			first = false
		}
	}
	if stuck >= maxStuck {
		return false, false
	}
	return first, behind
}

func (d *Driver) launch(s *slot, p span, behind bool) {
	var c *call
	if n := len(d.freeCalls); n > 0 {
		c = d.freeCalls[n-1]
		d.freeCalls = d.freeCalls[:n-1]
	} else {
		c = new(call)
		c.op.Done = func() { d.done(c) }
	}
	c.span, c.slot, c.gen, c.behind, c.stuck, c.began = p, s.target.Slot, s.gen, behind, false, d.now()
	c.op = space.Op{
		Kind: space.PageIn, VA: device.VA(p.start << device.PageShift), Pages: int(p.end - p.start), Write: p.write,
		Now: d.now, Done: c.op.Done,
	}
	if f := s.failing[pageKey{p.start, p.write}]; f.cause == "" && f.times == vainAgain {
		c.op.Kind = space.Remap
	}
	s.began++
	c.number = s.began
	s.calls = append(s.calls, c)
	d.machine.PageIn(c.slot, &c.op, behind || s.target.Method == Populate)
}

// nextFirst takes the first slice of the oldest new span; the rest of the span is queued behind
// the others' slices.
func (s *slot) nextFirst() (span, bool) {
	i := slices.IndexFunc(s.queued, func(p span) bool { return p.size == 0 })
	if i < 0 {
		return span{}, false
	}
	p := s.queued[i]
	s.queued = slices.Delete(s.queued, i, i+1)
	if s.target.Method == Populate {
		// Each call costs a question to the process and its answer, so the spans queued since the
		// last call are joined.
		p = s.joined(p)
		if p.end-p.start <= maxSlice {
			return p, true
		}
	}
	if p.end-p.start > inlinePages {
		rest := span{start: p.start + inlinePages, end: p.end, write: p.write, size: minSlice}
		p.end = rest.start
		s.push(rest)
	}
	return p, true
}

// joined adds to p the new spans that continue it, up to maxSlice pages in all.
func (s *slot) joined(p span) span {
	for i := 0; i < len(s.queued); {
		q := s.queued[i]
		if q.size != 0 || q.write != p.write || q.start != p.end && q.end != p.start || q.end-q.start+p.end-p.start > maxSlice {
			i++
			continue
		}
		p.start, p.end = min(p.start, q.start), max(p.end, q.end)
		s.queued = slices.Delete(s.queued, i, i+1)
		i = 0 // an earlier one may continue it now
	}
	return p
}

// nextBehind takes a slice of the oldest span whose first slice has completed. Slices grow from
// 16 to 64 pages, so that the first blocks flow early and calls are few; none is shorter than 16
// unless the span ends, or 64 aligned pages.
func (s *slot) nextBehind() (span, bool) {
	i := slices.IndexFunc(s.queued, func(p span) bool { return p.size != 0 })
	if i < 0 {
		return span{}, false
	}
	p := &s.queued[i]
	cur := *p
	left := p.end - p.start
	n := uint64(p.size)
	if left < n+minSlice {
		if n = left; left > maxSlice {
			n = left - minSlice
		}
	}
	if end := cur.start&^(maxSlice-1) + maxSlice; cur.start+n > end { // two calls would meet in one folio
		n = end - cur.start
	}
	cur.end = cur.start + n
	p.start = cur.end
	p.size = min(2*p.size, maxSlice)
	if p.start == p.end {
		s.queued = slices.Delete(s.queued, i, i+1)
	}
	return cur, true
}

// complete settles the waits for the pages of a slice.
func (d *Driver) complete(s *slot, c *call) {
	pages := int(c.end - c.start)
	all := ^uint64(0) >> (64 - uint(pages))
	got := c.op.Paged.Resident & all
	d.pagedIn(s, c, got)
	if got != 0 {
		s.counts.PageIns++
		fresh := uint64(bits.OnesCount64(c.op.Paged.New & all))
		s.counts.Pages += fresh + uint64(c.op.Paged.Beside)
		s.ahead.Paged(uint64(pages), fresh)
		switch c.op.Paged.Kind {
		case gup.Major:
			s.counts.Major++
		case gup.Permission:
			s.counts.Permission++
		default:
			s.counts.Minor++
		}
	}
	for i := range pages {
		k := pageKey{c.start + uint64(i), c.write}
		p := s.pages[k]
		switch {
		case p == nil: // no block waits for it
		case got>>uint(i)&1 != 0:
			d.there(s, c, p, i == 0 && c.op.Paged.There)
		case i > 0, p.endedBy(c) == 0:
			// Only the first page's reason is known, and it does not apply to waits that began
			// after the call: request this page by itself.
			s.queue(k.page, k.page+1, k.write)
		case final(c.op.Paged.Err):
			s.counts.Unresolvable++
			d.settle(s, c, p, Failed, c.op.Paged.Err)
		default:
			d.failed(s, c, p)
		}
	}
	if got == all {
		return
	}
	// The mapping ends here, or has a hole: the rest of the range was only a guess. Its pages
	// with waiters are requested by themselves.
	i := slices.IndexFunc(s.queued, func(p span) bool { return p.size != 0 && p.start == c.end && p.write == c.write })
	if i >= 0 {
		p := s.queued[i]
		s.queued = slices.Delete(s.queued, i, i+1)
		s.requeue(p)
	}
}

// final reports whether a failed page-in would fail again.
func final(err error) bool {
	return errors.Is(err, gup.ErrUnmapped) || errors.Is(err, gup.ErrDenied) ||
		errors.Is(err, gup.ErrGone) || errors.Is(err, gup.ErrPermission) || errors.Is(err, gup.ErrPastEnd) ||
		errors.Is(err, gup.ErrUnmappable) || errors.Is(err, gup.ErrNotShared)
}

// there answers the waiters for a page that is resident now. If it was resident before and faults
// again and again, its bytes cannot be moved.
func (d *Driver) there(s *slot, c *call, p *page, before bool) {
	if before && s.vain(p, c.op.Ended) >= maxVain {
		delete(s.failing, p.pageKey)
		s.counts.Unresolvable++
		d.settle(s, c, p, Failed, ErrInaccessible)
		return
	}
	if !before && len(s.failing) > 0 {
		delete(s.failing, p.pageKey)
	}
	d.settle(s, c, p, Resolved, nil)
}

// vain counts how often in a row a page was resident at which the same block faults, ignoring
// others: a page that its process drops and touches all the time is found resident for many
// blocks, and each of them makes progress.
func (s *slot) vain(p *page, now int64) int {
	f, counting := s.failing[p.pageKey]
	counting = counting && f.cause == "" && now-f.last <= forgetTime
	if counting && !p.waitedBy(f.of) {
		if f.others++; f.others < othersInVain {
			s.failing[p.pageKey] = f
			return 0
		}
		delete(s.failing, p.pageKey)
	}
	f = s.again(p.pageKey, "", now)
	if f.others = 0; f.times == 1 {
		f.of = p.waits[0].key()
	}
	s.failing[p.pageKey] = f
	return f.times
}

// failed retries a page that could not be paged in for now. After too many tries its waiters are
// left to the guard or, if it has failed in the same way for long, failed for good. A page-in
// that only hangs may still succeed.
func (d *Driver) failed(s *slot, c *call, p *page) {
	f := s.again(p.pageKey, c.op.Paged.Err.Error(), c.op.Ended)
	if p.tries++; p.tries < pageTries {
		s.queue(p.page, p.page+1, p.write)
		return
	}
	waits := errors.Is(c.op.Paged.Err, gup.ErrHangs) || errors.Is(c.op.Paged.Err, gup.ErrUnanswered)
	if c.op.Ended-f.since < finalTime || waits {
		d.settle(s, c, p, Unsent, c.op.Paged.Err)
		return
	}
	delete(s.failing, p.pageKey)
	s.counts.Unresolvable++
	d.settle(s, c, p, Failed, c.op.Paged.Err)
}

// again records a fruitless page-in and returns what is known about its predecessors.
func (s *slot) again(k pageKey, cause string, now int64) failure {
	f, ok := s.failing[k]
	if !ok && len(s.failing) >= maxFailing {
		clear(s.failing)
	}
	if !ok || f.cause != cause || now-f.last > forgetTime {
		f = failure{since: now, cause: cause}
	}
	f.last = now
	f.times++
	s.failing[k] = f
	return f
}

// settle ends the waits for a page with an outcome and its cause. A block that waits for nothing
// more is answered. If waits remain, the page is requested again.
func (d *Driver) settle(s *slot, c *call, p *page, o Outcome, cause error) {
	ended := len(p.waits)
	if o != Resolved {
		ended = p.endedBy(c)
	}
	for _, w := range p.waits[:ended] {
		r := d.log.at(w.record)
		if r != nil {
			r.Started, r.Resident, r.Kind, r.Outcome, r.Cause = c.op.Started, c.op.Ended, c.op.Paged.Kind, o, cause
		}
		b := w.block
		if b == nil {
			if r != nil {
				d.final(r)
			}
			continue
		}
		b.failed = b.failed || o == Failed
		b.memory = b.memory || o == Failed && memory(cause)
		b.abandoned = b.abandoned || o == Unsent
		b.waits = slices.DeleteFunc(b.waits, func(q *page) bool { return q == p })
		if len(b.waits) == 0 {
			d.finish(s, b)
		}
	}
	if !slices.ContainsFunc(p.waits[ended:], func(w wait) bool { return w.block == nil }) {
		d.resumeFor(s, p.pageKey, o)
	}
	if ended == len(p.waits) {
		d.dropPage(s, p)
		return
	}
	s.waits -= ended
	p.waits = slices.Delete(p.waits, 0, ended)
	p.tries = 0
	s.queue(p.page, p.page+1, p.write)
}

// memory reports whether a page failed because the kernel does not make it resident, rather than
// because of its address.
func memory(cause error) bool { return !final(cause) && !errors.Is(cause, ErrInaccessible) }

// resumeFor ends a bank's stall if it waits for this page.
func (d *Driver) resumeFor(s *slot, k pageKey, o Outcome) {
	if s.stalled && s.stall == k {
		d.resume(s.target.Slot, o != Resolved)
	}
}
