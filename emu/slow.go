package emu

import (
	"maps"
	"time"

	"github.com/exanet/pfd/space"
)

// Times of leases. Values below are defined by this project.
const (
	// leaseTime is how long a call that the engine makes may sleep. A call that does not sleep loses
	// its lease after longLease: the machine is busy.
	leaseTime = 20 * time.Millisecond
	longLease = 10 * leaseTime
	// lookEvery is how often the supervisor checks the current call.
	lookEvery = leaseTime / 4
	// slowTime is how long a slot stays slow.
	slowTime = 10 * time.Second
	// unseenTime is how long memory that a user's processes share is not touched after a touch that
	// slept. It is much longer because a garbage collection that begins during such a touch blocks
	// all goroutines until the touch ends.
	unseenTime = 10 * time.Minute
	// sleepShare: a slot is slow if its calls sleep for more than 1/sleepShare of the time, and for
	// leaseTime in all, even if none of them outlasts its lease.
	sleepShare = 50
)

// mostLate is how many touches that lost their leases may sleep at one time. A goroutine that sleeps
// in a load keeps its P (package internal/yield keeps eight). At this limit the engine touches
// nothing and reaches all memory by calls, until one of them ends. Defined by this project.
const mostLate = 4

// sleeper returns the account to which the call's sleep is charged; nil if it has none.
func (c *call) sleeper() *sleeper {
	switch {
	case c.slot != nil:
		return &c.slot.sleeper
	case c.atomic != nil:
		return &c.atomic.tree.owner.sleeper
	case c.step == space.Mapped: // by the tables of a driver in another process: the owner of the memory is unknown here
		return &c.node.sleepers[c.index]
	}
	return nil
}

// slept charges a call that was found asleep. It reports whether the slot is slow now.
func (s *sleeper) slept(now int64) bool {
	s.sleep = max(s.sleep-(now-s.sleptAt)/sleepShare, 0) + int64(lookEvery)
	s.sleptAt = now
	return s.sleep >= int64(leaseTime)
}

// slow reports whether a slot's calls are made apart. While one of its calls hangs it gets no other
// lease, and neither does a new attachment of its user.
func (e *Engine) slow(s *slot) bool {
	return s.slowUntil > e.clock.seen || s.late > 0 || s.wasLate && e.lateOf[s.att.UID] > 0
}

// usesMapping reports whether a call may make the step space.Mapped. It makes it under a lease, since a
// touch of a page that is being punched out of its file sleeps. It may not after a touch of the same
// user's memory has recently slept for too long.
func (e *Engine) usesMapping(c *call) bool {
	if c.slot == nil {
		return c.node.sleepers[c.index].slowUntil <= e.clock.seen
	}
	return c.slot.unseenUntil <= e.clock.seen && e.lateMapped < mostLate
}

// slowDown makes the engine make a slot's calls apart for a while, and those of new attachments of
// its user meanwhile: a new attachment gets no other lease. If it was a touch that slept, and did not
// only wait for a processor, the memory that the user's processes share is not touched for a while:
// operations on his trees fail meanwhile.
func (e *Engine) slowDown(c *call, why string) {
	now := e.Now()
	for _, users := range []map[uint32]int64{e.slowUsers, e.unseenUsers} {
		maps.DeleteFunc(users, func(_ uint32, until int64) bool { return until <= now })
	}
	until := now + int64(slowTime)
	sleeps := c.sleeper()
	sleeps.slowUntil, sleeps.sleep = until, 0
	if c.asleep && c.step == space.Mapped && (c.slot != nil || c.atomic != nil) {
		e.leaveUnseen(c.user(), now+int64(unseenTime))
	}
	s := c.slot
	if o := c.atomic; o != nil {
		e.log.Info(why+": pages of the user's trees are brought in apart, or not touched", "node", c.node.index, "tree", uint32(o.tree.protection), "uid", o.tree.UID, "after", leaseTime)
		return
	}
	if s == nil {
		e.log.Info(why+": the slot's memory is reached apart", "node", c.node.index, "slot", c.index, "after", leaseTime, "for", slowTime)
		return
	}
	e.slowUsers[s.att.UID] = until
	log := s.att.Log // its limit of lines is the user's own
	if log == nil {
		log = e.log.With("node", s.node.index, "slot", s.index)
	}
	log.Info(why+": the domain is served apart", "after", leaseTime, "for", slowTime)
}

// leaveUnseen makes the engine not touch memory that a user's processes share, until a time.
func (e *Engine) leaveUnseen(uid uint32, until int64) {
	e.unseenUsers[uid] = until
	for l := range e.attached {
		if l.att.UID == uid {
			l.unseenUntil = until
		}
	}
	if o := e.owners[uid]; o != nil {
		o.unseenUntil = until
	}
}
