package emu

import (
	"slices"
	"time"

	"github.com/exanet/pfd/gup"
)

// askedTime is how long the engine waits for a process's answer itself, beside all else
// (ours). Later a thread apart waits for it: a process that answers and does not kick, or
// that does not answer.
const askedTime = int64(time.Millisecond)

// mayAsk tells whether a call is one by which a process is asked to page in. The engine
// asks, goes on, and takes the answer when it comes: to have a thread wait for it costs
// two wake-ups more.
func (c *call) mayAsk() bool {
	if c.kind != callTask || c.asked || c.slot.port != nil {
		return false
	}
	_, ok := c.task.(gup.Asked)
	return ok
}

func (c *call) isAnswered() bool { return c.task.(gup.Asked).Answered() }

// asked takes what came of asking.
func (e *Engine) asked(c *call) {
	c.kind = callTask
	s := c.slot
	if !c.asked || s.node.slots[s.index] != s {
		e.makeAsked(c)
		return
	}
	c.since = e.Now()
	s.asked = append(s.asked, c)
	e.loop.Heat(&s.process, e.clock.seen)
}

// answers has the calls of a slot made whose answers are there, and leaves those to
// threads that wait for too long.
func (e *Engine) answers(s *slot) (any bool) {
	s.asked = slices.DeleteFunc(s.asked, func(c *call) bool {
		switch {
		case c.isAnswered():
			c.long = false
			e.tasks = append(e.tasks, c)
		case e.Now()-c.since > askedTime:
			e.makeAsked(c)
		default:
			return false
		}
		any = true
		return true
	})
	return any
}

// makeAsked has a thread wait for an answer, which takes a bounded time.
func (e *Engine) makeAsked(c *call) {
	e.spend(c)
	e.apart.make(e, c)
}

// leaveAsked leaves to threads whatever was asked of a slot's process.
func (e *Engine) leaveAsked(s *slot) {
	for _, c := range s.asked {
		e.makeAsked(c)
	}
	clear(s.asked)
	s.asked = s.asked[:0]
}
