package fault

import (
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// Slices (ours: up to 16 pages inline, more by a pager on the other CPU in
// slices of 16 to 64 pages).
const (
	inlinePages = 16
	minSlice    = 16
	maxSlice    = 64
	// pageTries: how often a page that could not be had for a passing reason is
	// tried before its block is left to the guard (ours).
	pageTries = 3
)

// Page-ins that hang, and those that fail again and again (ours).
const (
	// stuckTime is after how long a call counts as stuck: the pages of others are
	// brought in beside it. A slow disk answers sooner.
	stuckTime = int64(100 * time.Millisecond)
	// maxStuck bounds the stuck calls of a domain: each holds a thread.
	maxStuck = 8
	// finalTime is for how long a page-in may fail in the same way before the page
	// counts as one that never comes.
	finalTime = int64(time.Second)
	// forgetTime is how long a failure is remembered after the last one: longer
	// than a sender's longest guard time-out.
	forgetTime = int64(10 * time.Second)
	// maxVain is how often in a row a page may be found there at which a block faults: then
	// something else keeps the device from its bytes.
	maxVain = 128
	// othersInVain is how often others may fault at the page meanwhile before another block
	// is counted: that one has ended. A sender asks 1024 times (spec/messages.md 2).
	othersInVain = 512
	// vainAgain is after how many of these a Remapper is asked to map it once more.
	// Those before may be of accesses that were refused before the page was there.
	vainAgain = maxVain / 2
)

// ErrInaccessible says that a page is there, and that its bytes cannot be moved
// all the same: of memory that the kernel keeps to its process alone
// (memfd_secret), or of a device.
var ErrInaccessible = errors.New("the page is there, and the kernel moves no bytes of it: secret memory, or a device's")

// call is one Pager call for a slice of a span. Run sees only what was put into
// it; Done runs on the owning goroutine.
type call struct {
	span
	d      *Driver
	now    func() int64
	slot   int
	gen    uint32
	pager  Pager
	behind bool   // not the first slice of its span
	again  bool   // its first page is to be mapped once more
	began  int64  // when it was launched
	number uint64 // slot.began then
	stuck  bool   // it has outlasted stuckTime

	question       gup.Question // that Ask has asked, nil none
	res            gup.Result
	started, ended int64
}

// Run pages in. It runs anywhere.
func (c *call) Run() {
	if c.question != nil {
		c.res = c.question.Wait()
		c.ended = c.now()
		return
	}
	c.started = c.now()
	va := device.VA(c.start << device.PageShift)
	if r, ok := c.pager.(Remapper); ok && c.again {
		c.res = r.Again(va, c.write)
		c.res.There = c.res.Err == nil // for who counts
	} else {
		c.res = c.pager.PageIn(va, int(c.end-c.start), c.write)
	}
	c.ended = c.now()
}

// Ask and Answered implement gup.Asked.
func (c *call) Ask() bool {
	a, ok := c.pager.(Asker)
	if !ok {
		return false
	}
	c.started = c.now()
	c.question = a.Ask(device.VA(c.start<<device.PageShift), int(c.end-c.start), c.write)
	return c.question != nil
}

func (c *call) Answered() bool { return c.question.Answered() }

// PageIn and Paged implement gup.Call.
func (c *call) PageIn() (va device.VA, pages int, write, ok bool) {
	c.started = c.now()
	return device.VA(c.start << device.PageShift), int(c.end - c.start), c.write, c.pager == nil
}

// Paged takes the machine's result.
func (c *call) Paged(r gup.Result) { c.res, c.ended = r, c.now() }

// Refuse implements gup.Refuser.
func (c *call) Refuse(err error) {
	c.started = c.now()
	va := device.VA(c.start << device.PageShift)
	c.Paged(gup.Result{Err: &gup.Error{VA: va, Write: c.write, Err: err}})
}

// Done takes the result.
func (c *call) Done() {
	d := c.d
	if s := &d.slots[c.slot]; s.gen == c.gen {
		s.calls = slices.DeleteFunc(s.calls, func(o *call) bool { return o == c })
		d.complete(s, c)
		d.kick(s)
	}
	*c = call{d: d, now: c.now}
	d.calls = append(d.calls, c)
}

// kick starts what can be started: the first slice of a new fault, which the
// owning goroutine may do itself, and one of what policies add, beside it. The
// latter goes first, so that its worker wakes while the other is done inline.
func (d *Driver) kick(s *slot) {
	if !s.live {
		return
	}
	first, behind := true, true
	if len(s.calls) > 0 {
		if first, behind = d.free(s); !first && !behind {
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

// free tells whether a first slice, and one behind it, may be started: one of each
// at a time, beside those that are stuck. What a call that got stuck was asked
// beside its first page is asked for page by page.
func (d *Driver) free(s *slot) (first, behind bool) {
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
	if n := len(d.calls); n > 0 {
		c = d.calls[n-1]
		d.calls = d.calls[:n-1]
	} else {
		c = &call{d: d, now: d.now}
	}
	c.span, c.slot, c.gen, c.pager, c.behind, c.began = p, s.target.Slot, s.gen, s.target.Pager, behind, d.now()
	if s.target.ByMachine {
		c.pager = nil
	}
	f := s.failing[pageKey{p.start, p.write}]
	c.again = f.cause == "" && f.times == vainAgain
	s.began++
	c.number = s.began
	s.calls = append(s.calls, c)
	d.bus.Do(c.slot, c, behind || s.target.Method == Populate)
}

// nextFirst takes the first slice of the oldest new span; what remains of the span
// is queued behind the others'.
func (s *slot) nextFirst() (span, bool) {
	i := slices.IndexFunc(s.queued, func(p span) bool { return p.size == 0 })
	if i < 0 {
		return span{}, false
	}
	p := s.queued[i]
	s.queued = slices.Delete(s.queued, i, i+1)
	if s.target.Method == Populate {
		// Each call is a question to the process and its answer: what has come
		// together since the last one is asked for together.
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

// joined takes the new spans that continue p, up to maxSlice pages in all.
func (s *slot) joined(p span) span {
	for i := 0; i < len(s.queued); {
		q := s.queued[i]
		if q.size != 0 || q.write != p.write || q.start != p.end && q.end != p.start || q.end-q.start+p.end-p.start > maxSlice {
			i++
			continue
		}
		p.start, p.end = min(p.start, q.start), max(p.end, q.end)
		s.queued = slices.Delete(s.queued, i, i+1)
		i = 0 // one before it may continue it now
	}
	return p
}

// nextBehind takes a slice of the oldest span whose first slice is done. Slices
// grow from 16 to 64 pages, so that the blocks at the front flow early and the
// calls are few; none is left shorter than 16 but where the whole span is.
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
	cur.end = cur.start + n
	p.start = cur.end
	p.size = min(2*p.size, maxSlice)
	if p.start == p.end {
		s.queued = slices.Delete(s.queued, i, i+1)
	}
	return cur, true
}

// complete settles what waited for the pages of a slice.
func (d *Driver) complete(s *slot, c *call) {
	pages := int(c.end - c.start)
	all := ^uint64(0) >> (64 - uint(pages))
	got := c.res.Resident & all
	d.pagedIn(s, c, got)
	if got != 0 {
		s.counts.PageIns++
		fresh := uint64(bits.OnesCount64(c.res.New & all))
		s.counts.Pages += fresh
		s.ahead.Paged(uint64(pages), fresh)
		switch c.res.Kind {
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
		case p == nil: // nobody waits for it
		case got>>uint(i)&1 != 0:
			d.there(s, c, p, i == 0 && c.res.There)
		case i > 0, p.endedBy(c) == 0:
			// Only the first page's reason is known, and it says nothing to who came
			// after the call began: ask for this page by itself.
			s.queue(k.page, k.page+1, k.write)
		case final(c.res.Err):
			s.counts.Unresolvable++
			d.settle(s, c, p, Failed, c.res.Err)
		default:
			s.counts.Transient++
			d.failed(s, c, p)
		}
	}
	if got == all {
		return
	}
	// The mapping ends here, or has a hole: the rest of the range was only a
	// guess. Pages of it that somebody waits for are asked for by themselves.
	i := slices.IndexFunc(s.queued, func(p span) bool { return p.size != 0 && p.start == c.end && p.write == c.write })
	if i >= 0 {
		p := s.queued[i]
		s.queued = slices.Delete(s.queued, i, i+1)
		s.requeue(p)
	}
}

// final tells whether a page-in that failed would fail again.
func final(err error) bool {
	return errors.Is(err, gup.ErrUnmapped) || errors.Is(err, gup.ErrDenied) ||
		errors.Is(err, gup.ErrGone) || errors.Is(err, gup.ErrPermission) || errors.Is(err, gup.ErrPastEnd) ||
		errors.Is(err, gup.ErrUnmappable) || errors.Is(err, gup.ErrNotShared)
}

// there answers who waits for a page that is there now. One that was there before,
// and faults again and again, is one whose bytes cannot be moved.
func (d *Driver) there(s *slot, c *call, p *page, before bool) {
	if before && s.vain(p, c.ended) >= maxVain {
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

// vain counts how often in a row a page was there at which one and the same block faults,
// others left out: a page that its process drops and touches all the time is there again for
// many blocks, and each of them goes on.
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

// failed tries a page again that could not be had for now. Who has waited too
// often for it is given up, to the guard; where it has failed in the same way for
// long, for good. What only hangs may come.
func (d *Driver) failed(s *slot, c *call, p *page) {
	f := s.again(p.pageKey, c.res.Err.Error(), c.ended)
	if p.tries++; p.tries < pageTries {
		s.queue(p.page, p.page+1, p.write)
		return
	}
	waits := errors.Is(c.res.Err, gup.ErrHangs) || errors.Is(c.res.Err, gup.ErrUnanswered)
	if c.ended-f.since < finalTime || waits {
		d.settle(s, c, p, Unsent, c.res.Err)
		return
	}
	delete(s.failing, p.pageKey)
	s.counts.Unresolvable++
	d.settle(s, c, p, Failed, c.res.Err)
}

// again notes a page-in that was of no use and gives what is known of its like.
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

// endedBy returns how many of the waits, the first ones, a call's failure ends. Those
// that came after it began it does not end: it may have seen what was mapped there before.
func (p *page) endedBy(c *call) int {
	n := slices.IndexFunc(p.waits, func(w wait) bool { return w.began >= c.number })
	if n < 0 {
		n = len(p.waits)
	}
	return n
}

// settle ends the waits for a page with an outcome and its cause. A block that
// waits for nothing more is answered. For those that the outcome does not end the page
// is asked for once more.
func (d *Driver) settle(s *slot, c *call, p *page, o Outcome, cause error) {
	ended := len(p.waits)
	if o != Resolved {
		ended = p.endedBy(c)
	}
	for _, w := range p.waits[:ended] {
		r := d.log.at(w.record)
		if r != nil {
			r.Started, r.Resident, r.Kind, r.Outcome, r.Cause = c.started, c.ended, c.res.Kind, o, cause
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

// memory reports whether a page failed because the kernel does not bring it in, and not
// for its address.
func memory(cause error) bool { return !final(cause) && !errors.Is(cause, ErrInaccessible) }

// resumeFor ends a bank's stall where that waits for this page.
func (d *Driver) resumeFor(s *slot, k pageKey, o Outcome) {
	if s.stalled && s.stall == k {
		d.resume(s.target.Slot, o != Resolved)
	}
}
