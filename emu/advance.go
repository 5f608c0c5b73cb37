package emu

import (
	"errors"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/threads"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// begin begins a call, and returns it if it is to be performed.
func (e *Engine) begin(c *call) *call {
	s, n := c.slot, c.node
	c.begun = true
	switch {
	case s != nil:
		c.space = s.att.Space
	case c.queue == nil && n.outside.Memory != nil:
		c.space = n.outside.Memory(c.index, n.soc.Tables(c.index))
	}
	switch {
	case c.queue != nil:
		c.step = space.Run
		if n.remote() {
			e.askOutside(c)
			return nil
		}
		return c
	case c.space == nil:
		c.op.Fail(proc.ErrGone)
		return e.complete(c)
	}
	remote := s == nil && n.remote()
	step := c.space.Start(c.op, e.clock.seen, !remote && e.usesMapping(c))
	if remote {
		c.step = step
		e.askOutside(c)
		return nil
	}
	return e.advance(c, step)
}

// advance makes the next step of a call, or has it made: it is the one place that decides where. It
// returns the call if the step is to be performed here, under a lease.
func (e *Engine) advance(c *call, step space.Step) *call {
	s := c.slot
	c.step = step
	switch {
	case step == space.Over:
		return e.complete(c)
	case step == space.Wait:
		if s.node.slots[s.index] != s {
			return nil // it has been detached: no result will arrive
		}
		s.waits++
		c.op.Start()
		c.op.Call = c
		c.waited = true
		e.loop.Heat(&s.process, e.clock.seen)
		return nil
	case step == space.Mapped:
		return c
	case s == nil && step == space.Run:
		return c // no process is attached that could make it
	case s == nil, step == space.Apart && c.waited: // not refused
		e.spend(c)
		e.apart.make(c)
		return nil
	case step == space.Apart, e.slow(s):
		e.makeApart(c)
		return nil
	case c.long && step == space.Run && e.takes(c):
		e.apart.make(c)
		return nil
	}
	return c
}

// goOn continues an operation that waited for an answer.
func (e *Engine) goOn(op *space.Op, step space.Step) {
	c := op.Call.(*call)
	c.slot.waits--
	if c = e.advance(c, step); c != nil {
		e.tasks = append(e.tasks, c)
	}
}

// ran handles a step that has been run, and returns the call if more is to be performed.
func (e *Engine) ran(c *call) *call {
	if c.charged {
		e.giveBack(c)
	}
	if c.outside {
		c.outside = false
		e.outsideEnded(c.node)
	}
	switch {
	case c.atomic != nil:
		return e.operated(c)
	case c.queue != nil, c.bell != nil:
		return e.complete(c)
	}
	mapped := c.step == space.Mapped && c.slot != nil
	step := c.space.Next(c.op, e.clock.seen)
	switch {
	case mapped && step == space.Over:
		c.node.accesses.Shared++
	case mapped && c.op.Shared:
		c.node.accesses.SharedMissed++
	}
	return e.advance(c, step)
}

// returned handles a call that was made apart, or that has lost its lease.
func (e *Engine) returned(c *call) {
	if c.step == space.Mapped {
		e.lateMapped--
	}
	if c = e.ran(c); c != nil {
		e.tasks = append(e.tasks, c)
	}
}

// complete handles the result of a call. It returns the call if more of it is to be performed.
func (e *Engine) complete(c *call) *call {
	if c.queue != nil {
		e.step(c.node, &soc.Event{Kind: soc.QueueAccessed, Access: c.queue.ID, OK: c.err == nil})
		e.freeCall(c)
		return nil
	}
	if c.bell != nil {
		e.struck = e.struck || c.struck
		e.freeCall(c)
		return nil
	}
	if err := c.op.Failure(); err != nil && errors.Is(err, proc.ErrGone) {
		e.lost(c.slot)
	}
	switch c.op.Kind {
	case space.Walk:
		e.walked(c)
	case space.Move, space.Words:
		if c.rest() {
			return e.begin(c)
		}
		e.moved(c)
	default:
		if c.op.Ended == 0 { // it was not run: the pages were brought in otherwise
			c.op.End()
		}
		c.op.Done()
	}
	e.freeCall(c)
	return nil
}

func (e *Engine) walked(c *call) {
	w := c.op.Walked
	if c.op.Err != nil {
		w = proc.Walk{Absent: ^uint64(0)}
	}
	base := uint64(c.op.VA) >> device.PageShift
	for i := range c.count {
		pages := spanPages(c.vas[i], c.vas[i]+device.VA(c.lens[i]))
		shift := uint64(c.vas[i])>>device.PageShift - base
		mask := uint64(1)<<uint(pages) - 1
		e.step(c.node, &soc.Event{
			Kind: soc.Walked, Access: c.ids[i],
			Absent: w.Absent >> shift & mask, Denied: w.Denied >> shift & mask,
			Unused: w.Unused >> shift & mask, External: w.External >> shift & mask,
		})
	}
}

func (e *Engine) moved(c *call) {
	for i := range c.count {
		ev := soc.Event{Kind: soc.Moved, Access: c.ids[i], OK: c.moved[i] == c.lens[i]}
		if !ev.OK {
			ev.Bytes = c.moved[i]
		}
		e.step(c.node, &ev)
	}
}

// lost tells the owner of a slot, once, that the process's address space is gone.
func (e *Engine) lost(s *slot) {
	if s == nil || s.gone {
		return
	}
	s.gone = true
	if s.att.Gone != nil {
		s.att.Gone()
	}
}

// makeApart makes a call apart as soon as a thread is left for it. After one page-in of a slot has
// waited in vain, the next ones are refused at once: hundreds of pages may wait for their turn. So
// are those of a slot that has been detached.
func (e *Engine) makeApart(c *call) {
	switch {
	case e.takes(c):
		e.apart.make(c)
		return
	case c.slot.starved && c.pagesIn(), c.slot.node.slots[c.slot.index] != c.slot:
		e.denyThread(c)
		return
	}
	c.since = e.Now()
	c.slot.held = append(c.slot.held, c)
	e.holding++
	e.loop.Heat(&c.slot.process, e.clock.seen)
}

// holdTime is how long a call waits for a thread, in ns. Defined by this project.
const holdTime = int64(20 * time.Millisecond)

// release makes the calls that wait for a thread, as far as threads are left, and refuses those that
// have waited too long.
func (e *Engine) release() (any bool) {
	if e.holding == 0 {
		return false
	}
	now := e.Now()
	for _, p := range e.loop.Hot() {
		s := p.Slot
		for len(s.held) > 0 {
			c := s.held[0]
			late := now-c.since > holdTime
			if !late && !e.takes(c) {
				break
			}
			any = true
			s.held = slices.Delete(s.held, 0, 1)
			e.holding--
			if late {
				s.starved = s.starved || c.pagesIn()
				e.denyThread(c)
			} else {
				e.apart.make(c)
			}
		}
	}
	return any
}

// denyHeld refuses the calls of a detached slot that wait for a thread.
func (e *Engine) denyHeld(s *slot) {
	held := s.held
	s.held = nil
	e.holding -= len(held)
	for _, c := range held {
		e.denyThread(c)
	}
}

// denyThread ends a call for which there is no thread. A page-in fails with a temporary error; the pages
// of an access count as absent.
func (e *Engine) denyThread(c *call) {
	s := c.slot
	s.node.accesses.Refused++
	if s.att.Log != nil {
		s.att.Log.Warn("call refused", "err", threads.ErrNone)
	}
	c.op.Fail(threads.ErrNone)
	c.refused = true
	e.complete(c)
}

// askOutside makes a call apart that asks the driver in another process. That driver may itself wait
// for the engine. A node has one such call at a time.
func (e *Engine) askOutside(c *call) {
	c.outside = true
	if c.node.outsideBusy {
		c.node.outsideCalls = append(c.node.outsideCalls, c)
		return
	}
	c.node.outsideBusy = true
	e.spend(c) // not refused: a node has one at a time
	e.apart.make(c)
}

// outsideEnded notes that a call of askOutside has ended, and makes the next one.
func (e *Engine) outsideEnded(n *node) {
	if len(n.outsideCalls) == 0 {
		n.outsideBusy = false
		return
	}
	next := n.outsideCalls[0]
	n.outsideCalls = slices.Delete(n.outsideCalls, 0, 1)
	e.spend(next)
	e.apart.make(next)
}
