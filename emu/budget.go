package emu

import (
	"slices"
	"time"

	"github.com/exanet/pfd/internal/threads"
)

// A call made apart, and one that has lost its lease, holds a thread for as long as the
// process's memory makes it. So each counts in a budget, in which a user has a share. What
// finds no thread waits for one, and is refused after a while.

// noUser stands for whose calls are of no process (uid_t -1 is nobody's, setuid(2)).
const noUser = ^uint32(0)

func (c *call) user() uint32 {
	if c.slot == nil {
		return noUser
	}
	return c.slot.att.UID
}

// takes reports whether a thread is left for a call of a slot; the call is charged then. A
// page-in, which is what hangs, leaves half of what there is to accesses, and to slots that
// have no call under way.
func (e *Engine) takes(c *call) bool {
	if c.slot != nil && !e.threads.Take(c.slot.att.UID, c.slot.apart == 0 || !c.pagesIn()) {
		return false
	}
	if c.charged = true; c.slot != nil {
		c.slot.apart++
		c.slot.starved = c.slot.starved && !c.pagesIn()
	} else {
		e.threads.Charge(noUser)
	}
	return true
}

// makeApart has a call of a slow slot made apart, as soon as a thread is left for it. Where
// one page-in has waited in vain, the slot's next ones are refused at once: hundreds of
// pages may wait for their turn. So are those of a slot that has been detached.
func (e *Engine) makeApart(c *call) {
	switch {
	case e.takes(c):
		e.apart.make(e, c)
		return
	case c.slot.starved && c.pagesIn(), c.slot.node.slots[c.slot.index] != c.slot:
		e.refuse(c)
		return
	}
	c.since = e.Now()
	c.slot.held = append(c.slot.held, c)
	e.holding++
	e.loop.Heat(&c.slot.process, e.clock.seen)
}

// holdTime is how long a call waits for a thread, ns. Defined by this project.
const holdTime = int64(20 * time.Millisecond)

// release has the calls made that wait for a thread, as far as there is one, and refuses
// those that have waited for too long.
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
				e.refuse(c)
			} else {
				e.apart.make(e, c)
			}
		}
	}
	return any
}

// refuseHeld refuses what waits for a thread, of a slot that is given up.
func (e *Engine) refuseHeld(s *slot) {
	held := s.held
	s.held = nil
	e.holding -= len(held)
	for _, c := range held {
		e.refuse(c)
	}
}

// spend counts a call that is not refused.
func (e *Engine) spend(c *call) {
	if c.charged {
		return
	}
	e.threads.Charge(c.user())
	if c.slot != nil {
		c.slot.apart++
	}
	c.charged = true
}

// giveBack takes that such a call is over.
func (e *Engine) giveBack(c *call) {
	c.charged = false
	e.threads.Give(c.user())
	s := c.slot
	if s == nil {
		return
	}
	s.apart--
	if c.late {
		c.late = false
		s.late--
		if e.lateOf[s.att.UID]--; e.lateOf[s.att.UID] == 0 {
			delete(e.lateOf, s.att.UID)
		}
	}
}

// refuse ends a call for which there is no thread. A page-in fails for a reason that
// passes; an access is one whose pages are not there.
func (e *Engine) refuse(c *call) {
	s := c.slot
	s.node.accesses.Refused++
	if s.att.Log != nil {
		s.att.Log.Warn("call refused", "err", threads.ErrNone)
	}
	c.op.Fail(threads.ErrNone)
	c.refused = true
	e.complete(c)
}
