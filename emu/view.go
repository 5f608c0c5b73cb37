package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
)

// View is memory that a process shares, as the engine reaches it; *view.View is one.
type View interface {
	Has(va device.VA, pages int, write bool) bool
	ReadV(dst [][]byte, va device.VA) bool
	WriteV(src [][]byte, va device.VA) bool
	WriteWords(words []byte, va device.VA) bool
	Window(va device.VA, pages int, write bool) (at device.VA, n int, ok bool)
	Shares(va device.VA, pages int, write bool) (start device.VA, n int)
	Enter(va device.VA, pages int, there uint64) (entered uint64)
	Look(va device.VA, pages int) (absent uint64)
	PageIn(va device.VA, pages int, write bool) (entered, filled uint64)
}

// mostLate is how many touches that lost their leases may sleep at one time (ours). A
// goroutine that sleeps in a load keeps its P (package internal/yield keeps eight), so
// beyond that nothing is touched: all memory is asked for until one of them ends.
const mostLate = 4

// sees reports whether the memory that a slot's process shares is touched by the engine. It
// is not where a touch of the same user's memory has slept for too long a moment ago.
func (e *Engine) sees(s *slot) bool {
	return s.att.View != nil && s.unseenUntil <= e.clock.seen && e.late < mostLate
}

// touch does a walk or a move by the view of what the process shares, under a lease: a page
// that is being punched out of its file has whoever touches it sleep until that is over. c.hit
// reports whether it is done; else the process's table has to do it, and a walk looks further
// there. False: the lease was lost.
func (e *Engine) touch(c *call) bool {
	c.seen = c.slot.att.View
	held := e.hold(c)
	c.hit = c.byView(c.seen)
	if !e.letGo(c, held) {
		return false
	}
	if e.asleepIn.Load() == held {
		e.clock.run(e.Now())
		e.charge(c)
	}
	c.seen = nil
	c.tally()
	return true
}

// touched takes a touch that lost its lease. False: it missed, and is a call like any other.
func (e *Engine) touched(c *call) bool {
	e.late--
	c.seen = nil
	c.tally()
	if !c.hit && e.find(c) {
		e.tasks = append(e.tasks, c)
		return false
	}
	return true
}

// tally counts a touch.
func (c *call) tally() {
	switch {
	case c.hit:
		c.node.accesses.Shared++
	case c.view != nil:
		c.node.accesses.SharedMissed++
	}
}

// byView does a walk or a move by the view of what the process shares. False: it has to be
// done by the process's table, and a walk looks further there.
func (c *call) byView(v View) bool {
	switch {
	case c.kind == callWalk:
		c.walk = proc.Walk{}
		if v.Has(c.va, c.pages, c.write) {
			return true
		}
		if va, pages, ok := v.Window(c.va, c.pages, c.write); ok {
			// Shared memory has no copies: to be written a page need only be there.
			c.view, c.va, c.pages, c.write = v, va, pages, false
		}
		return false
	case c.ordered && !v.WriteWords(c.bufs[0], c.va),
		!c.ordered && c.write && !v.WriteV(c.buffers(0), c.va),
		!c.write && !v.ReadV(c.buffers(0), c.va):
		return false
	}
	copy(c.moved[:c.count], c.lens[:c.count])
	return true
}
