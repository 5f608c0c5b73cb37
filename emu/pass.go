package emu

import (
	"slices"

	"github.com/exanet/pfd/soc"
)

// pass does once everything that there is to do. ok is false if a call lost its lease: the caller must
// touch nothing any more.
//
// It polls the hot processes. Then it does the urgent work or, if there is none, a piece of the data; it
// ends if a process has published something meanwhile. So urgent work waits for one piece of data,
// and a stream of urgent work leaves one piece in passWork to the data.
func (e *Engine) pass() (busy, ok bool) {
	ok = true
	e.clock.run(e.Now())
	e.watchTrace()
	// Work that has begun goes first: its payloads are in the caches.
	busy = e.loop.Look(e.clock.seen, func() bool { return e.urgent.len() >= passWork/2 })
	for _, p := range e.loop.Hot() {
		s := p.Slot
		if s.waits > 0 && s.att.Space.Poll(e.clock.seen, e.goOn) {
			busy = true
		}
	}
	if e.release() {
		busy = true
	}
	for _, n := range e.nodes {
		if n.due <= e.clock.now {
			busy = true
			e.arrive(n)
			e.step(n, &soc.Event{Kind: soc.Tick})
		}
	}
	// Urgent work goes first, and the driver before the rest: a fault is cheap if its page-in runs on
	// another thread while bytes move here.
	for range passWork {
		var c *call
		data := false
		switch {
		case e.loop.Posted():
			e.loop.Take(e.returned)
		case e.vectors && e.deliver():
		case len(e.tasks) > 0:
			c = e.tasks[0]
			e.tasks = slices.Delete(e.tasks, 0, 1)
			if !c.begun {
				c = e.begin(c)
			}
		case e.urgent.some():
			c = e.next(&e.urgent)
		default:
			if c, data = e.data(); !data {
				return busy, true
			}
		}
		if !e.perform(c) {
			return true, false
		}
		if data && e.loop.Rung() {
			return true, true
		}
		busy = true
	}
	c, _ := e.data()
	return true, e.perform(c)
}

// data does one piece of work that is not urgent, as next does. done is false if there is none.
func (e *Engine) data() (c *call, done bool) {
	switch {
	case e.arriving.some():
		return e.next(&e.arriving), true
	case e.leaving.some():
		return e.next(&e.leaving), true
	}
	c = e.apart.takeBack(e.slow)
	return c, c != nil
}

// worth reports whether a pass would find something to do.
func (e *Engine) worth() bool {
	if e.loop.Posted() || e.loop.Rung() {
		return true
	}
	for _, p := range e.loop.Hot() {
		if s := p.Slot; s.waits > 0 && s.att.Space.Pending() {
			return true
		}
	}
	return false
}

// nudge wakes processes that have been asked and do not answer. It returns when it is due again for
// them, or for calls that wait for a thread; 0 is never.
func (e *Engine) nudge(now int64) (next int64) {
	for _, p := range e.loop.Hot() {
		s, n := p.Slot, int64(0)
		if s.waits > 0 {
			n = s.att.Space.Due(now)
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
