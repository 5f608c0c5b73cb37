package emu

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/space"
	"golang.org/x/sys/unix"
)

// Times of leases (ours).
const (
	// leaseTime is how long a call that the engine makes may sleep. longLease is
	// when it loses its lease though it does not sleep: the machine is busy.
	leaseTime = 20 * time.Millisecond
	longLease = 10 * leaseTime
	// lookEvery is how often the supervisor looks at the call under way.
	lookEvery = leaseTime / 4
	// slowTime is for how long a slot is slow, from when it was found so.
	slowTime = 10 * time.Second
	// unseenTime is for how long the memory that a user's processes share is not touched after
	// a touch that slept: much longer, since the runtime cannot collect garbage while one does,
	// and a collection that begins then stops everybody until it ends.
	unseenTime = 10 * time.Minute
	// sleepShare: a slot whose calls sleep for more than this part of the time,
	// and for a lease in all, is slow though none has outlasted its own.
	sleepShare = 50
)

// mostLate is how many touches that lost their leases may sleep at one time. A goroutine that
// sleeps in a load keeps its P (package internal/yield keeps eight), so beyond that nothing is
// touched: all memory is asked for until one of them ends. Defined by this project.
const mostLate = 4

// touches reports whether a call may touch memory: under a lease, since a page that is being
// punched out of its file has a touch sleep. It may not where a touch of the same user's memory
// has slept for too long a moment ago.
func (e *Engine) touches(c *call) bool {
	if c.slot == nil {
		return c.node.sleepers[c.index].slowUntil <= e.clock.seen
	}
	return c.slot.unseenUntil <= e.clock.seen && e.late < mostLate
}

// begin begins a call, and returns it if it is to be performed.
func (e *Engine) begin(c *call) *call {
	s, n := c.slot, c.node
	c.begun = true
	switch {
	case s != nil:
		c.space = s.att.Space
	case c.queue == nil && n.outside.Memory != nil:
		c.space = n.outside.Memory(c.index, n.soc.Tables(c.index))
	}
	switch {
	case c.queue != nil:
		c.step = space.Run
		if n.remote() {
			e.askOutside(c)
			return nil
		}
		return c
	case c.space == nil:
		c.op.Fail(proc.ErrGone)
		return e.complete(c)
	}
	remote := s == nil && n.remote()
	step := c.space.Start(c.op, e.clock.seen, !remote && e.touches(c))
	if remote {
		c.step = step
		e.askOutside(c)
		return nil
	}
	return e.advance(c, step)
}

// advance has a call's next step made: it is the one place that decides where. It returns the
// call if the step is to be performed here, under a lease.
func (e *Engine) advance(c *call, step space.Step) *call {
	s := c.slot
	c.step = step
	switch {
	case step == space.Over:
		return e.complete(c)
	case step == space.Wait:
		if s.node.slots[s.index] != s {
			return nil // it has been detached: the results never come
		}
		s.waits++
		c.op.Start()
		c.op.Call = c
		c.asked = true
		e.loop.Heat(&s.process, e.clock.seen)
		return nil
	case step == space.Touch:
		return c
	case s == nil && step == space.Run:
		return c // nobody else would make it: no process is attached to the slot
	case s == nil, step == space.Apart && c.asked: // it is not refused
		e.spend(c)
		e.apart.make(e, c)
		return nil
	case step == space.Apart, e.slow(s):
		e.makeApart(c)
		return nil
	case c.behind && step == space.Run && e.takes(c):
		e.apart.make(e, c)
		return nil
	}
	return c
}

// goOn goes on with an operation that waited for an answer.
func (e *Engine) goOn(op *space.Op, step space.Step) {
	c := op.Call.(*call)
	c.slot.waits--
	if c = e.advance(c, step); c != nil {
		e.tasks = append(e.tasks, c)
	}
}

// ran takes a run of a call that is over, and returns the call if more is to be performed.
func (e *Engine) ran(c *call) *call {
	if c.charged {
		e.giveBack(c)
	}
	if c.asks {
		c.asks = false
		e.askedOutside(c.node)
	}
	if c.queue != nil {
		return e.complete(c)
	}
	touched := c.step == space.Touch && c.slot != nil
	step := c.space.Next(c.op, e.clock.seen)
	switch {
	case touched && step == space.Over:
		c.node.accesses.Shared++
	case touched && c.op.Shared:
		c.node.accesses.SharedMissed++
	}
	return e.advance(c, step)
}

// returned takes a call that was made apart, or that has lost its lease.
func (e *Engine) returned(c *call) {
	if c.step == space.Touch {
		e.late--
	}
	if c = e.ran(c); c != nil {
		e.tasks = append(e.tasks, c)
	}
}

// remote tells whether the node's memory is reached by asking its driver, or was a
// moment ago: accesses keep their order.
func (n *node) remote() bool {
	return n.outside.Remote != nil && (n.outside.Remote() || n.asking)
}

// askOutside has a call made apart by which the driver is asked, who may wait for
// the engine: one of a node at a time.
func (e *Engine) askOutside(c *call) {
	c.asks = true
	if c.node.asking {
		c.node.asks = append(c.node.asks, c)
		return
	}
	c.node.asking = true
	e.spend(c) // one a node
	e.apart.make(e, c)
}

// askedOutside takes that a call of askOutside is over.
func (e *Engine) askedOutside(n *node) {
	if len(n.asks) == 0 {
		n.asking = false
		return
	}
	next := n.asks[0]
	n.asks = slices.Delete(n.asks, 0, 1)
	e.spend(next)
	e.apart.make(e, next)
}

// perform makes a call here, under a lease; nil is none. It returns false if the lease was
// lost. The lease is a count, odd within a call; the supervisor takes it over by making it
// even, and then everything that the engine owns belongs to the goroutine that it starts.
func (e *Engine) perform(c *call) bool {
	for c != nil {
		e.current = c
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
		if c.step != space.Touch || c.slot == nil || slept {
			e.clock.run(e.Now())
		}
		if slept {
			e.charge(c)
		}
		c = e.ran(c)
	}
	return true
}

// charge takes that the supervisor has found a call asleep.
func (e *Engine) charge(c *call) {
	if s := c.sleeper(); s != nil && e.own() && s.slept(e.clock.seen) {
		e.slowDown(c, "memory accesses hold everybody up")
	}
}

// overtaken goes on where another goroutine got stuck in call late.
func (e *Engine) overtaken(late *call) {
	if late.node != nil {
		late.node.accesses.LeasesLost++
	}
	if late.step == space.Touch {
		e.late++
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

// slow reports whether a slot's calls are made apart. One of which a call still hangs
// gets no further lease, and attaching anew gives its user none.
func (e *Engine) slow(s *slot) bool {
	return s.slowUntil > e.clock.seen || s.late > 0 || s.wasLate && e.lateOf[s.att.UID] > 0
}

// sleeper gives to whom it is charged that a call sleeps; nil: nobody.
func (c *call) sleeper() *sleeper {
	switch {
	case c.slot != nil:
		return &c.slot.sleeper
	case c.step == space.Touch: // by the tables of a driver elsewhere: the process is not known here
		return &c.node.sleepers[c.index]
	}
	return nil
}

// slept takes that a call was found asleep. True: the slot is slow.
func (s *sleeper) slept(now int64) bool {
	s.sleep = max(s.sleep-(now-s.sleptAt)/sleepShare, 0) + int64(lookEvery)
	s.sleptAt = now
	return s.sleep >= int64(leaseTime)
}

// slowDown has a slot's calls made apart for a while, and those of whatever its
// user attaches meanwhile: attaching anew gives nobody another lease. Where it was a touch
// that slept, no memory that the user's processes share is touched meanwhile.
func (e *Engine) slowDown(c *call, why string) {
	until := e.Now() + int64(slowTime)
	sleeps := c.sleeper()
	sleeps.slowUntil, sleeps.sleep = until, 0
	s := c.slot
	if s == nil {
		e.log.Info(why+": the slot's memory is reached apart", "node", c.node.index, "slot", c.index, "after", leaseTime, "for", slowTime)
		return
	}
	e.slowUsers[s.att.UID] = until
	if c.step == space.Touch {
		unseen := e.Now() + int64(unseenTime)
		e.unseenUsers[s.att.UID] = unseen
		for l := range e.attached {
			if l.att.UID == s.att.UID {
				l.unseenUntil = unseen
			}
		}
	}
	log := s.att.Log // the user's own lines: nobody else's are held back for them
	if log == nil {
		log = e.log.With("node", s.node.index, "slot", s.index)
	}
	log.Info(why+": the domain is served apart", "after", leaseTime, "for", slowTime)
}

// supervise looks every few milliseconds at the call under way: one that sleeps
// is charged to its slot, and one that outlasts its lease is left behind. It
// parks when nothing goes on, so that an idle machine uses no CPU.
func (e *Engine) supervise() {
	seen, since, quiet := uint64(0), time.Now(), 0
	for e.watchdog.ring() == nil {
		select {
		case <-e.loop.Done():
			return
		default:
		}
		v := e.lease.Load()
		if v != seen {
			seen, since, quiet = v, time.Now(), 0
		}
		if v&1 == 0 {
			if quiet++; quiet < 2 {
				continue
			}
			quiet = 0
			e.watchdog.set(0, 0)
			e.parked.Store(true)
			select {
			case <-e.loop.Done():
				return
			default:
			}
			// A call that began before it saw the flag shows in the count.
			if e.lease.Load() != v && e.parked.CompareAndSwap(true, false) {
				e.watchdog.set(lookEvery, lookEvery)
			}
			continue
		}
		asleep := e.asleepNow()
		if asleep {
			e.asleepIn.Store(v)
		}
		if over := time.Since(since); over >= longLease || over >= leaseTime && asleep {
			if e.lease.CompareAndSwap(v, v+1) {
				go e.run(e.current)
			}
		}
	}
}

// asleepNow tells whether the engine's thread sleeps. One that runs, or would if it
// had a processor, waits for no memory: the machine is only busy.
func (e *Engine) asleepNow() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", e.thread.Load()))
	if err != nil {
		return true
	}
	// "TID (NAME) STATE ...", with any NAME (proc_pid_stat(5)).
	i := bytes.LastIndexByte(b, ')')
	return i < 0 || len(b) <= i+2 || b[i+2] != 'R'
}

// own notes the calling thread for the supervisor: the goroutine may go to another
// one, but seldom. False: it has.
func (e *Engine) own() bool {
	thread := int32(unix.Gettid())
	return e.thread.Swap(thread) == thread
}
