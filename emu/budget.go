package emu

// A call made apart, or one that has lost its lease, holds a thread for as long as the process's memory
// blocks it. So each counts in a budget, of which a user has a share. A call without a thread waits for
// one, and is refused after a while.

// takes reports whether a thread is left for a call, and charges the call then. Page-ins are the calls
// that hang: they leave half of the threads to accesses, and to slots that have no call in progress.
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

// spend charges a call that must not be refused.
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

// giveBack ends the charge for a call that has ended.
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
