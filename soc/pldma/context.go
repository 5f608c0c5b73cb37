package pldma

import (
	"math"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// maxDomainContexts is the number of receive contexts that one source domain may hold, so that
// its paused blocks cannot starve others (spec/firmware.md; defined by this project).
const maxDomainContexts = 32

// keptContexts is how many of a source domain's contexts are reserved for short transfers, as is
// an eighth of all contexts (defined by this project): otherwise a process's large transfers
// would cause its short ones to be refused.
const keptContexts = 4

// keptOfSlot is how many contexts are reserved for blocks to each slot (defined by this project):
// a slot's blocks must not be refused because other slots' memory does not answer.
const keptOfSlot = 4

// kept returns keptOfSlot scaled to the number of contexts.
func (e *Engine) kept() int { return e.cfg.Contexts * keptOfSlot / device.Contexts }

// contextsFor reports whether a context is available for a block to a slot. If none is free, it
// ends one that only remained to report more absent pages of a refused block.
func (e *Engine) contextsFor(slot int, f *wire.Frame) bool {
	r := &e.recv
	all, own := e.cfg.Contexts, maxDomainContexts
	if !f.Short() {
		all -= all / 8
		own -= keptContexts
	}
	room := func() bool {
		if r.byDomain[f.SrcPDID] >= own {
			return false
		}
		return r.open+r.reserve < all || r.bySlot[slot] < e.kept() && r.open < e.cfg.Contexts
	}
	if room() {
		return true
	}
	full := r.byDomain[f.SrcPDID] >= own
	for c := r.head; c != nil; c = c.next {
		if c.nacked && c.writing == 0 && (!full || c.header.SrcPDID == f.SrcPDID) {
			e.abandon(c)
			return room()
		}
	}
	return false
}

// count adds by, 1 or -1, to the counts of a context's source domain and slot.
func (e *Engine) count(c *context, by int) {
	r := &e.recv
	r.open += by
	kept := func() int { return max(0, e.kept()-r.bySlot[c.slot]) }
	r.reserve -= kept()
	r.bySlot[c.slot] += by
	r.reserve += kept()
	if r.byDomain[c.header.SrcPDID] += by; r.byDomain[c.header.SrcPDID] == 0 {
		delete(r.byDomain, c.header.SrcPDID)
	}
}

func (e *Engine) initReceiver() {
	r := &e.recv
	timeout := r.timeout
	if timeout == 0 {
		timeout = device.TimeoutReset * 1000
	}
	*r = receiver{timeout: timeout, sources: make(map[device.NodeID]*source), byDomain: make(map[device.PDID]int), reserve: e.kept() * device.Slots}
}

// endContexts abandons the contexts for which which returns true.
func (e *Engine) endContexts(which func(*context) bool) {
	for c := e.recv.head; c != nil; {
		next := c.next
		if which(c) {
			e.abandon(c)
		}
		c = next
	}
}

// abandon removes a context from use; it ends with its last access.
func (e *Engine) abandon(c *context) {
	e.unlink(c)
	c.rec.ctx = nil
	c.dead = true
	if c.draining {
		c.draining = false
		e.recv.draining--
		e.reopen(c)
	}
	if c.writing == 0 {
		e.recycle(c)
		return
	}
	e.recv.ending = append(e.recv.ending, c)
}

func (e *Engine) recycle(c *context) {
	e.recv.ending = slices.DeleteFunc(e.recv.ending, func(x *context) bool { return x == c })
	e.count(c, -1)
	*c = context{next: e.recv.free}
	e.recv.free = c
}

func (e *Engine) link(c *context) {
	c.prev, c.next = e.recv.tail, nil
	if c.prev != nil {
		c.prev.next = c
	} else {
		e.recv.head = c
	}
	e.recv.tail = c
}

func (e *Engine) unlink(c *context) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		e.recv.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		e.recv.tail = c.prev
	}
	c.prev, c.next = nil, nil
}

func (e *Engine) touch(c *context, now int64) {
	c.touched = now
	if e.recv.tail != c {
		e.unlink(c)
		e.link(c)
	}
}

// Deadline returns when Expire is due, math.MaxInt64 for never.
func (e *Engine) Deadline() int64 {
	if c := e.recv.head; c != nil {
		return c.touched + 2*e.recv.timeout
	}
	return math.MaxInt64
}

// Expire ends contexts that have received no packet for twice the time-out. A context with a
// write in flight stays: its buffer is in use.
func (e *Engine) Expire(now int64) {
	for c := e.recv.head; c != nil && c.touched+2*e.recv.timeout <= now; c = e.recv.head {
		if c.writing > 0 {
			e.touch(c, now)
			if e.recv.head == c {
				return
			}
			continue
		}
		e.abandon(c)
	}
}
