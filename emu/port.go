package emu

import (
	"errors"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/proc"
)

// Calls of a slot whose memory is reached by a port are neither run nor waited
// for: they are handed over, and taken back when they are answered.

// ask hands a call to its slot's port. False: it is one that has to be run.
func (e *Engine) ask(c *call) bool {
	r := &c.request
	switch c.kind {
	case callWalk:
		r.AskWalk(c.va, c.pages, c.write)
	case callMove:
		e.askMove(c, 0)
	case callTask:
		t, ok := c.task.(gup.Call)
		if !ok {
			return false
		}
		va, pages, write, ok := t.PageIn()
		if !ok {
			return false
		}
		r.AskPageIn(va, pages, write)
	}
	if r.Done == nil {
		r.Done = func() { e.answered(c) }
	}
	e.submit(c.slot, c)
	return true
}

// byFile makes a walk or a page-in one that the file of shared memory answers, callLook or
// callFill, so that the slot's process need not be asked. False: it is none.
func (c *call) byFile() bool {
	switch c.kind {
	case callLook, callFill:
		return true
	case callWalk:
		if c.view != nil {
			last := c.count - 1
			c.kind, c.va, c.pages = callLook, c.vas[0], spanPages(c.vas[0], c.vas[last]+device.VA(c.lens[last]))
			return true
		}
	case callTask:
		t, ok := c.task.(gup.Call)
		if !ok || c.slot.att.View == nil {
			return false
		}
		va, pages, write, ok := t.PageIn()
		if !ok {
			return false
		}
		if _, n := c.slot.att.View.Shares(va, pages, write); n > 0 {
			c.kind, c.view, c.va, c.pages, c.write = callFill, c.slot.att.View, va, pages, write
			return true
		}
	}
	return false
}

// fill pages in by the file of shared memory.
func (c *call) fill() {
	entered, filled := c.view.PageIn(c.va, c.pages, c.write)
	c.paged = gup.Result{Resident: entered}
	c.paged.Since(entered &^ filled)
}

// filled takes what came of that. False: the process is asked for the page, which is in swap,
// or which nothing fills.
func (e *Engine) filled(c *call) bool {
	if c.paged.Resident&1 == 0 {
		c.kind = callTask
		e.ask(c)
		return false
	}
	c.task.(gup.Call).Paged(c.paged)
	c.task.Done()
	return true
}

// askMove asks for the moves of a call's accesses from number i on.
func (e *Engine) askMove(c *call, i int) {
	c.from = i
	bufs := c.bufs[:1]
	if !c.ordered {
		bufs = c.buffers(i)
	}
	c.request.AskMove(bufs, c.vas[i], c.write, c.ordered)
}

// submit hands a call over, or has it wait for a place.
func (e *Engine) submit(s *slot, c *call) {
	switch ok, ended := s.port.Submit(&c.request, e.Now()); {
	case ended:
		e.answered(c)
	case !ok:
		s.waiting = append(s.waiting, c)
	}
	e.loop.Heat(&s.process, e.clock.seen)
}

// answered takes a call's answer, and hands over what waits for its place.
func (e *Engine) answered(c *call) {
	r, s := &c.request, c.slot
	switch c.kind {
	case callTask:
		if t, ok := c.task.(gup.Call); ok {
			t.Paged(r.PageIn)
		}
		c.err = r.PageIn.Err
		e.lost(c)
	case callMove:
		if r.Err != nil {
			c.err = r.Err
		}
		// What is joined behind a part that failed is tried by itself.
		if i := c.share(c.from, r.Moved); i+1 < c.count && !errors.Is(c.err, proc.ErrGone) {
			e.askMove(c, i+1)
			e.submit(s, c)
			return
		}
	default:
		c.walk, c.err = r.Walk, r.Err
	}
	if c.kind == callWalk && c.view != nil {
		c.kind = callEnter
		e.tasks = append(e.tasks, c)
	} else {
		e.complete(c)
	}
	if len(s.waiting) > 0 {
		next := s.waiting[0]
		s.waiting = slices.Delete(s.waiting, 0, 1)
		e.submit(s, next)
	}
}

// nudge looks after helpers of which a thread is stuck; it returns when that, or what
// processes were asked, or what waits for a thread, is to be looked at again, 0 never.
func (e *Engine) nudge(now int64) (next int64) {
	for _, p := range e.loop.Hot() {
		s, n := p.Slot, int64(0)
		switch {
		case s.port != nil:
			n = s.port.Nudge(now)
		case len(s.asked) > 0:
			n = s.asked[0].since + askedTime
		}
		if len(s.held) > 0 {
			if until := s.held[0].since + holdTime + 1; n == 0 || until < n {
				n = until
			}
		}
		if n > 0 && (next == 0 || n < next) {
			next = n
		}
	}
	return next
}
