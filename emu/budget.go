package emu

// A call made apart, or one that has lost its lease, holds a thread for as long as the process's memory
// blocks it. So each counts in a budget, of which a user has a share. A call without a thread waits for
// one, and is refused after a while.

// takes reports whether a thread is left for a call, and charges the call then. Page-ins are the calls
// that hang: they leave half of the threads to accesses, and to slots that have no call in progress.
func (e *Engine) takes(c *call) bool {
	switch {
	case c.slot != nil:
		if !e.threads.Take(c.user(), c.slot.apart == 0 || !c.pagesIn()) {
			return false
		}
		c.slot.apart++
		c.slot.starved = c.slot.starved && !c.pagesIn()
	case c.atomic != nil:
		if !e.threads.Take(c.user(), c.atomic.tree.owner.apart == 0) {
			return false
		}
		c.atomic.tree.owner.apart++
	default:
		e.threads.Charge(noUser)
	}
	c.charged = true
	return true
}

// spend charges a call that must not be refused.
func (e *Engine) spend(c *call) {
	if c.charged {
		return
	}
	e.threads.Charge(c.user())
	switch {
	case c.slot != nil:
		c.slot.apart++
	case c.atomic != nil:
		c.atomic.tree.owner.apart++
	}
	c.charged = true
}

// giveBack ends the charge for a call that has ended.
func (e *Engine) giveBack(c *call) {
	c.charged = false
	e.threads.Give(c.user())
	if c.atomic != nil {
		c.atomic.tree.owner.apart--
	}
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
