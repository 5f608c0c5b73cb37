package emu

import (
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/space"
)

// own notes the calling thread for the supervisor: the runtime may move the goroutine to another
// thread, but rarely does. So it is noted again once between two looks of the supervisor. own reports
// whether the thread is still the same.
func (e *Engine) own() bool {
	thread := int32(unix.Gettid())
	return e.thread.Swap(thread) == thread
}

// perform makes a call here, under a lease; nil is none. It returns false if the lease was lost: the
// caller must touch nothing any more. The lease is a count, odd within a call. The supervisor takes it
// over by making it even, and then the goroutine that it starts owns all of the engine's state.
func (e *Engine) perform(c *call) bool {
	for c != nil {
		if c.step == space.Mapped && !e.stillTouches(c) {
			c = e.untouched(c)
			continue
		}
		e.current = c
		if !e.noted.Load() {
			e.noted.Store(true)
			e.own()
		}
		held := e.lease.Add(1)
		if e.parked.Load() && e.parked.CompareAndSwap(true, false) {
			e.watchdog.set(lookEvery, lookEvery)
		}
		c.run()
		if !e.lease.CompareAndSwap(held, held+1) {
			e.loop.Send(c) // the engine's owner takes it later
			return false
		}
		slept := e.asleepIn.Load() == held
		if c.step != space.Mapped || c.slot == nil && c.atomic == nil || slept {
			e.clock.run(e.Now())
		}
		if slept {
			e.charge(c)
		}
		c = e.ran(c)
	}
	return true
}

// stillTouches reports whether a call that is to make the step space.Mapped still may: another touch may
// have slept since that was decided.
func (e *Engine) stillTouches(c *call) bool {
	if c.atomic != nil {
		return e.touches(c.atomic.tree)
	}
	return e.usesMapping(c)
}

// untouched handles that such a call may not any more, and returns it if more is to be performed.
func (e *Engine) untouched(c *call) *call {
	switch {
	case c.atomic != nil:
		return e.endOperation(c, atomics.NoMemory)
	case c.bell != nil:
		c.bell.Wake()
		e.freeCall(c)
		return nil
	}
	c.own.Again(c.own.Kind, c.own.Write, c.own.VA, c.own.Pages, c.own.Bufs)
	return e.advance(c, c.space.Start(c.op, e.clock.seen, false))
}

// charge handles that the supervisor has found a call asleep.
func (e *Engine) charge(c *call) {
	if s := c.sleeper(); s != nil && e.own() && s.slept(e.clock.seen) {
		c.asleep = true
		e.slowDown(c, "memory accesses sleep too long")
	}
}

// overtaken takes over from a goroutine that is blocked in call late.
func (e *Engine) overtaken(late *call) {
	if late.node != nil {
		late.node.accesses.LeasesLost++
	}
	if late.step == space.Mapped {
		e.lateMapped++
	}
	e.spend(late)
	late.late = true
	if s := late.slot; s != nil {
		s.late++
		e.lateOf[s.att.UID]++
	}
	if late.sleeper() != nil {
		e.slowDown(late, "memory access over its lease")
	}
}
