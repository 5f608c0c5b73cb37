package emu

import "math"

// Lend runs f on the caller's goroutine as if that were the engine's, and then
// whatever f has made the machine do. For who serves registers to another
// process it saves the way to the engine goroutine and back, which costs more
// than everything else of an access. It waits while somebody else owns the
// engine. False: the engine has ended and f was not run. f must not call Lend.
func (e *Engine) Lend(f func()) bool {
	e.held.Lock()
	select {
	case <-e.loop.Done():
		e.held.Unlock()
		return false
	default:
	}
	e.borrowed = true
	e.own()
	e.clock.slept(e.Now(), e.until)
	f()
	e.repay()
	return true
}

// repay does what there is to do and gives the engine back. Where a call outlasts
// its lease meanwhile, the engine has another owner, who repays.
func (e *Engine) repay() {
	for {
		busy, ok := e.pass()
		if !ok {
			return
		}
		if !busy {
			break
		}
	}
	e.show(math.MaxInt64 / 2)
	e.borrowed = false
	// The engine goroutine sleeps until a deadline that was the next one when it
	// fell asleep.
	wake := e.stop || e.nudge(e.Now()) > 0
	for _, n := range e.nodes {
		wake = wake || n.due < e.until
	}
	if wake {
		e.until = 0 // once is enough
		e.loop.Wake()
	}
	e.held.Unlock()
}
