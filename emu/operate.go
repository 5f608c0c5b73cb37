package emu

import (
	"maps"
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
	if old := n.trees[p]; old != nil {
		old.owner.trees--
		delete(n.trees, p)
	}
	if t == nil {
		return
	}
	if n.trees == nil {
		n.trees = map[atomics.Protection]*tree{}
	}
	maps.DeleteFunc(e.owners, func(_ uint32, o *treeOwner) bool { return o.trees == 0 && o.slowUntil <= e.clock.seen })
	o := e.owners[t.UID]
	if o == nil {
		o = &treeOwner{unseenUntil: e.unseenUsers[t.UID]}
		e.owners[t.UID] = o
	}
	o.trees++
	n.trees[p] = &tree{Tree: *t, protection: p, present: map[uint64]*pageSet{}, owner: o}
}

// OnCall makes the engine call f with each operation of a thread that is for the driver
// (atomics.Op.Memory is false). AnswerCall answers it, from f or later. On the owning goroutine, as f
// is.
func (e *Engine) OnCall(f func(node int, c atomics.Call)) { e.onCall = f }

// AnswerCall answers an operation that is for the driver. An unknown id is ignored. On the owning
// goroutine.
func (e *Engine) AnswerCall(node int, id uint32, s atomics.Status, values ...uint64) {
	n := e.nodes[node]
	if h, ok := n.held.calls[id]; ok {
		delete(n.held.calls, id)
		n.held.give(h)
	}
	ev := soc.Event{Kind: soc.AtomicDone, Access: id, Status: s}
	ev.N = copy(ev.Words[:atomics.MaxValues], values)
	e.step(n, &ev)
}

// maxTries is how often the page of an operation is brought in before the operation fails: it is
// punched out, or swapped out, all the time. Defined by this project.
const maxTries = 8

// mostDriverTrees is how many trees of a driver in another process a node knows. Defined by this project.
const mostDriverTrees = 4096

// holderOf returns for whom an operation counts; t is nil if its tree has no memory on the node. Another host
// says itself whose its threads are, so all other hosts have one share.
func (e *Engine) holderOf(a *gsas.Access, t *tree) holder {
	switch {
	case e.nodeOf(a.Thread.Node()) == nil:
		return holder{uid: noUser}
	case t == nil:
		return holder{noUser, a.Tree}
	}
	return holder{uid: t.UID}
}

// operate begins an operation of a node's unit, and returns the call if it is to be performed.
func (e *Engine) operate(n *node, a *gsas.Access) *call {
	t := n.trees[a.Tree]
	if !a.Op.Memory() {
		h := e.holderOf(a, t)
		switch {
		case e.onCall == nil:
			e.AnswerCall(n.index, a.ID, atomics.BadRequest)
		case !n.held.take(h):
			e.AnswerCall(n.index, a.ID, atomics.Busy)
		default:
			n.held.calls[a.ID] = h
			e.onCall(n.index, atomics.Call{ID: a.ID, Request: a.Request})
		}
		return nil
	}
	if n.trees[a.Tree] == nil && n.outside.Words != nil {
		// Their users are unknown here: a tree whose memory hangs is to delay no other. A driver may name
		// many, and nothing is lost with those that are forgotten.
		if len(n.trees) >= mostDriverTrees {
			for p := range n.trees {
				e.SetTree(n.index, p, nil)
			}
		}
		e.SetTree(n.index, a.Tree, &Tree{Memory: n.outside.Words, UID: uint32(a.Tree)})
		t = n.trees[a.Tree]
	}
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
	return t.owner.unseenUntil <= e.clock.seen && e.lateMapped < mostLate
}

// operated handles a step of an operation that has been made, and returns the call if more is to be
// performed.
func (e *Engine) operated(c *call) *call {
	o := c.atomic
	t, back := o.tree, o.access.Back
	if c.step != space.Mapped {
		e.nextWaiting(t.owner)
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
// short page-in is, but apart if such calls of the user's trees have slept for long.
func (e *Engine) bringIn(c *call) *call {
	o := c.atomic
	if o.tries++; o.tries > maxTries {
		return e.endOperation(c, atomics.NoMemory)
	}
	if c.step = space.Run; o.tree.owner.slowUntil <= e.clock.seen {
		return c
	}
	c.step = space.Apart
	if o.held = o.held || c.node.held.take(e.holderOf(o.access, o.tree)); !o.held {
		return e.endOperation(c, atomics.Busy)
	}
	switch {
	case e.takes(c):
		e.apart.make(c)
	case o.tree.owner.apart > 0:
		o.tree.owner.waiting = append(o.tree.owner.waiting, c)
	default:
		return e.endOperation(c, atomics.NoMemory)
	}
	return nil
}

// nextWaiting makes a page-in of a user's trees that waits for a thread.
func (e *Engine) nextWaiting(o *treeOwner) {
	for len(o.waiting) > 0 {
		c := o.waiting[0]
		if e.takes(c) {
			e.apart.make(c)
		} else if o.apart > 0 {
			return
		} else {
			e.endOperation(c, atomics.NoMemory)
		}
		o.waiting = slices.Delete(o.waiting, 0, 1)
	}
}

// endOperation tells the unit the result of an operation. It returns nil: no more of the call is to
// be performed.
func (e *Engine) endOperation(c *call, s atomics.Status) *call {
	ev := soc.Event{Kind: soc.AtomicDone, Access: c.atomic.access.ID, Status: s}
	if s == atomics.OK {
		ev.N = copy(ev.Words[:], c.atomic.values[:c.atomic.access.Op.Values()])
	}
	if c.atomic.held {
		c.node.held.give(e.holderOf(c.atomic.access, c.atomic.tree))
	}
	e.step(c.node, &ev)
	e.freeCall(c)
	return nil
}
