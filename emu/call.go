package emu

import (
	"errors"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
)

// maxJoin is the most pages that one walk or move covers: 256 KiB. Defined by this project.
const maxJoin = 64

// call is one piece of work that may sleep in the kernel: an operation on memory, which is a walk
// or a move of neighbouring accesses or a page-in of the driver's, or an access of queues in
// memory. While it runs it touches nothing but itself; its result is taken on the engine goroutine.
type call struct {
	op      *space.Op // own, or the driver's page-in; nil: of queues
	own     space.Op
	space   space.Space // of op
	step    space.Step  // that is under way
	begun   bool        // step is
	queue   *queue.Access
	err     error // of queue
	behind  bool  // a page-in for which no block waits yet
	charged bool  // it counts in the engine's budget of threads
	late    bool  // it has lost its lease
	refused bool  // nothing of it is tried
	asked   bool  // somebody has been asked for it
	asks    bool  // the driver of the node, by askOutside
	node    *node
	slot    *slot
	index   int   // of the slot
	since   int64 // when it began to wait for a thread

	count int // accesses joined
	from  int // the access that op begins with
	ids   [maxJoin]uint32
	vas   [maxJoin]device.VA
	lens  [maxJoin]int
	bufs  [maxJoin][]byte
	whole [maxJoin][]byte // bufs, those that are neighbours in memory as one
	moved [maxJoin]int    // bytes of each access
}

func (e *Engine) newCall() *call {
	n := len(e.free)
	if n == 0 {
		return new(call)
	}
	c := e.free[n-1]
	e.free = e.free[:n-1]
	return c
}

func (e *Engine) freeCall(c *call) {
	clear(c.bufs[:c.count])
	clear(c.whole[:c.count])
	clear(c.moved[:c.count])
	c.op, c.space, c.queue, c.err, c.node, c.slot = nil, nil, nil, nil, nil, nil
	c.count, c.from = 0, 0
	c.begun, c.behind, c.asks, c.late, c.refused, c.asked = false, false, false, false, false, false
	e.free = append(e.free, c)
}

// pagesIn reports whether the call is a page-in of the driver's.
func (c *call) pagesIn() bool { return c.op != nil && c.op.PagesIn() }

// access makes one call of the walk or move at the head of the queue and of those
// behind it that continue it. It returns the call where it is to be performed.
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
		// No byte moves. The driver knows which of the pages it is, and brings in the others.
		c.own.Walked, c.refused = proc.Walk{Denied: ^uint64(0)}, true
		return e.complete(c)
	}
	return e.begin(c)
}

func spanPages(from, to device.VA) int {
	return int((uint64(to)+device.PageSize-1)>>device.PageShift - uint64(from)>>device.PageShift)
}

func (c *call) add(a *pldma.Access) {
	i := c.count
	c.ids[i], c.vas[i], c.lens[i], c.bufs[i] = a.ID, a.VA, len(a.Data), a.Data
	c.count++
}

// run runs the call. It is what may sleep.
func (c *call) run() {
	switch {
	case c.queue != nil:
		c.err = c.queueMove()
	case c.op.PagesIn():
		c.op.Start()
		c.space.Run(c.op)
		c.op.End()
	default:
		c.space.Run(c.op)
	}
}

// buffers returns the bytes of the accesses from the first on in as few pieces as
// they lie in: the kernel takes a page and a copy more for each piece.
func (c *call) buffers(first int) [][]byte {
	whole := append(c.whole[:0], c.bufs[first])
	for _, b := range c.bufs[first+1 : c.count] {
		last := &whole[len(whole)-1]
		if both, ok := wire.Adjoin(*last, b); ok {
			*last = both
		} else {
			whole = append(whole, b)
		}
	}
	return whole
}

// share records that n bytes of the accesses from number i on were moved, and returns the number
// of the first that got fewer than it has; count if none did.
func (c *call) share(i, n int) int {
	for ; i < c.count && n >= c.lens[i]; i++ {
		c.moved[i] = c.lens[i]
		n -= c.lens[i]
	}
	if i < c.count {
		c.moved[i] = n
	}
	return i
}

// rest takes what has been moved, and reports whether there is more to move: an access that cannot
// be moved to its end stops none of those that were joined behind it, unless the address space is
// gone. op is that move then.
func (c *call) rest() bool {
	i := c.share(c.from, c.op.Moved)
	if i+1 >= c.count || c.refused || c.op.Err != nil && errors.Is(c.op.Err, proc.ErrGone) {
		return false
	}
	c.from = i + 1
	c.own.Again(c.own.Kind, c.own.Write, c.vas[c.from], 0, c.buffers(c.from))
	return true
}

// complete takes a call's result on the engine goroutine. It returns the call again if more of it
// is to be performed.
func (e *Engine) complete(c *call) *call {
	if c.queue != nil {
		e.step(c.node, &soc.Event{Kind: soc.QueueAccessed, Access: c.queue.ID, OK: c.err == nil})
		e.freeCall(c)
		return nil
	}
	if err := c.op.Failure(); err != nil && errors.Is(err, proc.ErrGone) {
		e.lost(c.slot)
	}
	switch c.op.Kind {
	case space.Walk:
		e.walked(c)
	case space.Move, space.Words:
		if c.rest() {
			return e.begin(c)
		}
		e.moved(c)
	default:
		if c.op.Ended == 0 { // it was not run: somebody else has paged in
			c.op.End()
		}
		c.op.Done()
	}
	e.freeCall(c)
	return nil
}

func (e *Engine) walked(c *call) {
	w := c.op.Walked
	if c.op.Err != nil {
		w = proc.Walk{Absent: ^uint64(0)}
	}
	base := uint64(c.op.VA) >> device.PageShift
	for i := range c.count {
		pages := spanPages(c.vas[i], c.vas[i]+device.VA(c.lens[i]))
		shift := uint64(c.vas[i])>>device.PageShift - base
		mask := uint64(1)<<uint(pages) - 1
		e.step(c.node, &soc.Event{
			Kind: soc.Walked, Access: c.ids[i],
			Absent: w.Absent >> shift & mask, Denied: w.Denied >> shift & mask,
			Unused: w.Unused >> shift & mask, External: w.External >> shift & mask,
		})
	}
}

func (e *Engine) moved(c *call) {
	for i := range c.count {
		ev := soc.Event{Kind: soc.Moved, Access: c.ids[i], OK: c.moved[i] == c.lens[i]}
		if !ev.OK {
			ev.Bytes = c.moved[i]
		}
		e.step(c.node, &ev)
	}
}

// lost tells the owner of a slot, once, that its address space is gone.
func (e *Engine) lost(s *slot) {
	if s == nil || s.gone {
		return
	}
	s.gone = true
	if s.att.Gone != nil {
		s.att.Gone()
	}
}
