package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// next does the action at the head of the queue, together with those behind it that can be joined to
// it. It returns the call that is to be performed for it, or nil.
func (e *Engine) next(q *itemQueue) *call {
	it := &q.items[q.head]
	n, a := it.node, it.action
	switch a.Kind {
	case soc.Walk, soc.Move:
		return e.access(q)
	}
	q.head++
	switch a.Kind {
	case soc.QueueAccess:
		return e.queueAccess(n, a.Queue)
	case soc.Atomic:
		return e.operate(n, a.Atomic)
	case soc.Transmit:
		e.transmit(n, a.Frame)
	case soc.Interrupt:
		n.pending |= 1 << a.Vector
		e.vectors = true
	case soc.DescriptorChanged:
		e.tracePublishing()
		if s := n.slots[a.Slot]; s != nil {
			s.att.Pages.SetDone(int(a.Channel), a.Done, a.Status, a.Paused)
			if a.Done != device.DoneOngoing && a.Channel < device.WriteChannels {
				e.notify(s)
				e.strike(s, s.att.Bells.Mail())
			}
		}
		e.tracePublished(n, &a)
	case soc.WordsWritten:
		if s := n.slots[a.Slot]; s != nil {
			e.notify(s)
			e.strike(s, s.att.Bells.Words(a.VA))
		}
	case soc.MailArrived:
		e.mailArrived(n, int(a.Interface))
	}
	return nil
}

// access makes one call of the walk or move at the head of the queue and of those behind it that
// continue it. It returns the call if it is to be performed.
func (e *Engine) access(q *itemQueue) *call {
	first := &q.items[q.head]
	a := first.action.Access
	n := first.node
	c := e.newCall()
	c.node, c.slot, c.index = n, n.slots[a.Slot], int(a.Slot)
	end, most, pages := a.VA, maxJoin, 0
	if a.First {
		most = 1
	}
	for q.some() && c.count < most {
		it := &q.items[q.head]
		b := it.action.Access
		if it.node != n || it.action.Kind != first.action.Kind || b.Slot != a.Slot || b.Write != a.Write || b.VA != end ||
			c.count > 0 && (b.Ordered || a.Ordered) {
			break
		}
		span := spanPages(a.VA, b.VA+device.VA(len(b.Data)))
		if c.count > 0 && span > maxJoin {
			break
		}
		c.add(b)
		pages = span
		end = b.VA + device.VA(len(b.Data))
		q.head++
	}
	c.op = &c.own
	switch {
	case first.action.Kind == soc.Walk:
		c.own.Again(space.Walk, a.Write, a.VA, pages, nil)
	case a.Ordered:
		c.own.Again(space.Words, a.Write, a.VA, 0, c.bufs[:1])
	default:
		c.own.Again(space.Move, a.Write, a.VA, 0, c.buffers(0))
	}
	if a.Write && c.slot != nil && c.slot.att.ReadOnly != nil && c.slot.att.ReadOnly.Forbids(a.VA, uint64(end-a.VA)) {
		// No byte moves. The driver knows which of the pages is read-only, and brings in the others.
		c.own.Walked, c.refused = proc.Walk{Denied: ^uint64(0)}, true
		return e.complete(c)
	}
	return e.begin(c)
}

// queueAccess begins an access to a node's queues in memory, and returns the call if it is to be
// performed.
func (e *Engine) queueAccess(n *node, a *queue.Access) *call {
	c := e.newCall()
	c.node, c.queue = n, a
	return e.begin(c)
}

// deliver passes pending vectors to the drivers.
func (e *Engine) deliver() (any bool) {
	e.vectors = false
	for _, n := range e.nodes {
		if n.pending == 0 || n.handler == nil {
			continue
		}
		any = true
		p := n.pending
		n.pending = 0
		for v := 0; v < device.Vectors; v++ {
			if p>>uint(v)&1 != 0 {
				n.handler.Interrupt(v)
			}
		}
	}
	return any
}
