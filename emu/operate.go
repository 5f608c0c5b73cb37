package emu

import (
	"slices"

	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/space"
)

// SetTree sets the memory of a tree on a node; nil: it has none any more. The caller must have made sure
// that no page of the tree is valid, or busy (GSAS_ENTRY). On the owning goroutine.
func (e *Engine) SetTree(node int, p atomics.Protection, t *Tree) {
	n := e.nodes[node]
	if t == nil {
		delete(n.trees, p)
		return
	}
	if n.trees == nil {
		n.trees = map[atomics.Protection]*tree{}
	}
	n.trees[p] = &tree{Tree: *t, protection: p, present: map[uint64]*pageSet{}, unseenUntil: e.unseenUsers[t.UID]}
}

// OnCall makes the engine call f with each operation of a thread that is for the driver
// (atomics.Op.Memory is false). AnswerCall answers it, from f or later. On the owning goroutine, as f
// is.
func (e *Engine) OnCall(f func(node int, c atomics.Call)) { e.onCall = f }

// AnswerCall answers an operation that is for the driver. An unknown id is ignored. On the owning
// goroutine.
func (e *Engine) AnswerCall(node int, id uint32, s atomics.Status, values ...uint64) {
	ev := soc.Event{Kind: soc.AtomicDone, Access: id, Status: s}
	ev.N = copy(ev.Words[:atomics.MaxValues], values)
	e.step(e.nodes[node], &ev)
}

// maxTries is how often the page of an operation is brought in before the operation fails: it is
// punched out, or swapped out, all the time. Defined by this project.
const maxTries = 8

// operate begins an operation of a node's unit, and returns the call if it is to be performed.
func (e *Engine) operate(n *node, a *gsas.Access) *call {
	if !a.Op.Memory() {
		if e.onCall == nil {
			e.AnswerCall(n.index, a.ID, atomics.BadRequest)
			return nil
		}
		e.onCall(n.index, atomics.Call{ID: a.ID, Request: a.Request})
		return nil
	}
	if n.trees[a.Tree] == nil && n.outside.Words != nil {
		// Their users are unknown here: a tree whose memory hangs is to delay no other.
		e.SetTree(n.index, a.Tree, &Tree{Memory: n.outside.Words, UID: uint32(a.Tree)})
	}
	t := n.trees[a.Tree]
	if t == nil || !e.touches(t) {
		e.AnswerCall(n.index, a.ID, atomics.NoMemory)
		return nil
	}
	c := e.newCall()
	c.node, c.begun, c.step = n, true, space.Mapped
	c.ownOp = operation{access: a, tree: t}
	c.atomic = &c.ownOp
	if n.outside.Words == nil && !t.has(a.Back) {
		return e.bringIn(c)
	}
	return c
}

// touches reports whether the memory of a tree may be touched (usesMapping).
func (e *Engine) touches(t *tree) bool {
	return t.unseenUntil <= e.clock.seen && e.lateMapped < mostLate
}

// operated handles a step of an operation that has been made, and returns the call if more is to be
// performed.
func (e *Engine) operated(c *call) *call {
	o := c.atomic
	t, back := o.tree, o.access.Back
	if c.step != space.Mapped {
		e.nextWaiting(t)
		if c.err != nil || !e.touches(t) {
			return e.endOperation(c, atomics.NoMemory)
		}
		t.note(back, true)
		c.step = space.Mapped
		return c
	}
	if o.hit {
		return e.endOperation(c, atomics.OK)
	}
	t.note(back, false)
	return e.bringIn(c)
}

// bringIn begins to bring in the page of an operation: on the engine's goroutine under a lease, as a
// short page-in is, but apart if such calls of the tree have slept for long.
func (e *Engine) bringIn(c *call) *call {
	o := c.atomic
	if o.tries++; o.tries > maxTries {
		return e.endOperation(c, atomics.NoMemory)
	}
	if c.step = space.Run; o.tree.slowUntil <= e.clock.seen {
		return c
	}
	c.step = space.Apart
	switch {
	case e.takes(c):
		e.apart.make(c)
	case o.tree.apart > 0:
		o.tree.waiting = append(o.tree.waiting, c)
	default:
		return e.endOperation(c, atomics.NoMemory)
	}
	return nil
}

// nextWaiting makes a page-in of a tree that waits for a thread.
func (e *Engine) nextWaiting(t *tree) {
	for len(t.waiting) > 0 {
		c := t.waiting[0]
		if e.takes(c) {
			e.apart.make(c)
		} else if t.apart > 0 {
			return
		} else {
			e.endOperation(c, atomics.NoMemory)
		}
		t.waiting = slices.Delete(t.waiting, 0, 1)
	}
}

// endOperation tells the unit the result of an operation. It returns nil: no more of the call is to
// be performed.
func (e *Engine) endOperation(c *call, s atomics.Status) *call {
	ev := soc.Event{Kind: soc.AtomicDone, Access: c.atomic.access.ID, Status: s}
	if s == atomics.OK {
		ev.N = copy(ev.Words[:], c.atomic.values[:c.atomic.access.Op.Values()])
	}
	e.step(c.node, &ev)
	e.freeCall(c)
	return nil
}
