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

// sees reports whether the memory that a slot's process shares is touched by the engine: under
// a lease, since a page that is being punched out of its file has a touch sleep. It is not where a touch of the same user's memory has slept for too long a moment ago.
func (e *Engine) sees(s *slot) bool {
	return s.att.View != nil && s.unseenUntil <= e.clock.seen && e.late < mostLate
}

// touched counts a touch of shared memory that is over. It reports whether it
// was all; where it missed, the process's table has to do the call.
func (c *call) touched() bool {
	c.seen = nil
	switch {
	case c.hit:
		c.node.accesses.Shared++
	case c.view != nil:
		c.node.accesses.SharedMissed++
	}
	return c.hit
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
