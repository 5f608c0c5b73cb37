package emu

import "math"

// Lend runs f on the caller's goroutine in place of the engine's, and then does the work that results
// from it. It saves a server of registers for another process the way to the engine goroutine and
// back, which costs more than the rest of an access. It blocks while another goroutine owns the
// engine. It returns false if the engine has ended and f was not run. f must not call Lend.
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

// repay does the work that there is and returns the engine. If a call outlasts its lease meanwhile,
// the engine has another owner, which repays.
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
	// The engine goroutine sleeps until the deadline that was the next one when it fell asleep.
	wake := e.stop || e.nudge(e.Now()) > 0
	for _, n := range e.nodes {
		wake = wake || n.due < e.until
	}
	if wake {
		e.until = 0 // it is woken once
		e.loop.Wake()
	}
	e.held.Unlock()
}
