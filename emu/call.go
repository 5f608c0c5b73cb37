package emu

import (
	"errors"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/memport"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/wire"
)

type callKind uint8

const (
	callWalk callKind = iota + 1
	callMove
	callTask
	callQueue
	callAsk   // a task that asks a process first: callTask once it has
	callEnter // a walk whose pages are entered in the slot's view
	callLook  // a walk by the file of shared memory, which needs no process
	callFill  // a page-in by it: callTask where that is not enough
)

// maxJoin bounds what one walk or move covers: 64 pages, 256 KiB (ours).
const maxJoin = 64

// call is one piece of work that may sleep in the kernel: a walk or a move of
// neighbouring accesses, or a device.Call of the driver. While it runs it
// touches nothing but itself; its result is taken on the engine goroutine.
type call struct {
	kind    callKind
	long    bool
	charged bool // it counts in the engine's budget of threads
	late    bool // it has lost its lease
	asks    bool // the driver of the node, by askOutside
	write   bool
	ordered bool
	node    *node
	slot    *slot
	index   int // of the slot
	mem     Memory
	view    View // the pages are shared: those that a walk finds are entered there
	seen    View // the call is being done by it, under a lease (touch)
	hit     bool // and that was all
	task    device.Call
	asked   bool  // the process was asked
	since   int64 // Now, when it was
	queue   *queue.Access

	va    device.VA
	pages int
	count int // accesses joined
	ids   [maxJoin]uint32
	vas   [maxJoin]device.VA
	lens  [maxJoin]int
	bufs  [maxJoin][]byte
	whole [maxJoin][]byte // bufs, those that are neighbours in memory as one

	walk  proc.Walk
	moved [maxJoin]int // bytes of each access
	err   error

	paged   gup.Result      // of a callFill
	request memport.Request // by the slot's port
	from    int             // the access that a move's request begins with
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
	c.node, c.slot, c.mem, c.view, c.seen, c.task, c.queue, c.err = nil, nil, nil, nil, nil, nil, nil, nil
	c.count, c.pages = 0, 0
	c.long, c.asks, c.asked, c.ordered, c.late = false, false, false, false, false
	e.free = append(e.free, c)
}

// access makes one call of the walk or move at the head of the queue and of those
// behind it that continue it. It returns the call where it is to be performed.
func (e *Engine) access(q *itemQueue) *call {
	first := &q.items[q.head]
	a := first.action.Access
	n := first.node
	c := e.newCall()
	c.kind, c.node, c.slot, c.index = callWalk, n, n.slots[a.Slot], int(a.Slot)
	if first.action.Kind == soc.Move {
		c.kind = callMove
	}
	c.write, c.ordered, c.va = a.Write, a.Ordered, a.VA
	end, most := a.VA, maxJoin
	if a.First {
		most = 1
	}
	for q.some() && c.count < most {
		it := &q.items[q.head]
		b := it.action.Access
		if it.node != n || it.action.Kind != first.action.Kind || b.Slot != a.Slot || b.Write != c.write || b.VA != end ||
			c.count > 0 && (b.Ordered || c.ordered) {
			break
		}
		pages := spanPages(c.va, b.VA+device.VA(len(b.Data)))
		if c.count > 0 && pages > maxJoin {
			break
		}
		c.add(b)
		c.pages = pages
		end = b.VA + device.VA(len(b.Data))
		q.head++
	}
	if c.write && c.slot != nil && c.slot.att.ReadOnly != nil && c.slot.att.ReadOnly.Forbids(c.va, uint64(end-c.va)) {
		// No byte moves. The driver knows which of the pages it is, and brings in the others.
		c.walk = proc.Walk{Denied: ^uint64(0)}
		e.complete(c)
		return nil
	}
	if c.slot != nil && e.sees(c.slot) {
		c.seen = c.slot.att.View
		return c
	}
	return e.reach(c)
}

// reach has a walk or a move made by the memory that is asked for it, and returns the call
// where it is to be performed.
func (e *Engine) reach(c *call) *call {
	if !e.find(c) {
		e.complete(c)
		return nil
	}
	return e.dispatch(c)
}

// find finds the memory of a walk or a move: the process's, its helper's, or what the slot's
// tables name. False: there is none, which is the call's result.
func (e *Engine) find(c *call) bool {
	n := c.node
	switch {
	case c.slot != nil && c.slot.port != nil:
		return true
	case c.slot != nil:
		c.mem = c.slot.att.Memory
	case n.outside.Memory != nil:
		c.mem = n.outside.Memory(c.index, n.soc.Tables(c.index))
	}
	if c.mem == nil {
		c.err = proc.ErrGone
	}
	return c.mem != nil
}

func spanPages(from, to device.VA) int {
	return int((uint64(to)+device.PageSize-1)>>device.PageShift - uint64(from)>>device.PageShift)
}

func (c *call) add(a *pldma.Access) {
	i := c.count
	c.ids[i], c.vas[i], c.lens[i], c.bufs[i] = a.ID, a.VA, len(a.Data), a.Data
	c.count++
}

// run does the call. It is what may sleep.
func (c *call) run() {
	if c.seen != nil {
		c.hit = c.byView(c.seen)
		return
	}
	switch c.kind {
	case callWalk:
		c.walk, c.err = c.mem.Walk(c.va, c.pages, c.write)
		c.enter()
	case callEnter:
		c.enter()
	case callLook:
		c.walk = proc.Walk{Absent: c.view.Look(c.va, c.pages)}
	case callFill:
		c.fill()
	case callMove:
		c.move()
	case callTask:
		c.task.Run()
	case callAsk:
		c.asked = c.task.(gup.Asked).Ask()
	case callQueue:
		c.err = c.queueMove()
	}
}

// enter enters what a walk has found of shared memory.
func (c *call) enter() {
	if c.view != nil && c.err == nil {
		c.view.Enter(c.va, c.pages, ^(c.walk.Absent | c.walk.Denied))
	}
}

// buffers gives the bytes of the accesses from the first on in as few pieces as
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

// move moves the bytes of the accesses. One that cannot be moved to its end stops
// none of those that were joined behind it, unless the address space is gone.
func (c *call) move() {
	for i := 0; i < c.count && !errors.Is(c.err, proc.ErrGone); i++ {
		n, err := c.moveFrom(i)
		if err != nil {
			c.err = err
		}
		i = c.share(i, n)
	}
}

// share tells the accesses from number i on that n bytes were moved, and returns
// the number of the one that got fewer than it wanted; count where none did.
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

// moveFrom moves the accesses from number i on until one cannot be moved, and
// gives how many bytes it moved.
func (c *call) moveFrom(i int) (int, error) {
	switch {
	case c.ordered:
		// Two words, the second only after the first (001 §2.3.3.2).
		words := c.bufs[i]
		one := [1][]byte{words[:8]}
		first, err := c.mem.WriteV(one[:], c.va)
		if err != nil || first < 8 {
			return first, err
		}
		one[0] = words[8:16]
		second, err := c.mem.WriteV(one[:], c.va+8)
		return first + second, err
	case c.write:
		return c.mem.WriteV(c.buffers(i), c.vas[i])
	}
	return c.mem.ReadV(c.buffers(i), c.vas[i])
}

// complete takes a call's result on the engine goroutine.
func (e *Engine) complete(c *call) {
	if c.charged {
		e.giveBack(c)
	}
	if c.asks {
		e.askedOutside(c.node)
	}
	if c.seen != nil { // it has lost its lease
		e.late--
		if !c.touched() && e.find(c) {
			e.tasks = append(e.tasks, c)
			return
		}
	}
	switch c.kind {
	case callAsk:
		e.asked(c)
		return
	case callTask:
		c.task.Done()
	case callQueue:
		e.queueMoved(c)
	case callWalk, callEnter, callLook:
		e.walked(c)
	case callFill:
		if !e.filled(c) {
			return
		}
	case callMove:
		e.moved(c)
	}
	e.freeCall(c)
}

func (e *Engine) walked(c *call) {
	if c.err != nil {
		c.walk = proc.Walk{Absent: ^uint64(0)}
		e.lost(c)
	}
	base := uint64(c.va) >> device.PageShift
	for i := range c.count {
		pages := spanPages(c.vas[i], c.vas[i]+device.VA(c.lens[i]))
		shift := uint64(c.vas[i])>>device.PageShift - base
		mask := uint64(1)<<uint(pages) - 1
		e.step(c.node, &soc.Event{
			Kind: soc.Walked, Access: c.ids[i],
			Absent: c.walk.Absent >> shift & mask, Denied: c.walk.Denied >> shift & mask,
			Unused: c.walk.Unused >> shift & mask, External: c.walk.External >> shift & mask,
		})
	}
}

func (e *Engine) moved(c *call) {
	if c.err != nil {
		e.lost(c)
	}
	for i := range c.count {
		ev := soc.Event{Kind: soc.Moved, Access: c.ids[i], OK: c.moved[i] == c.lens[i]}
		if !ev.OK {
			ev.Bytes = c.moved[i]
		}
		e.step(c.node, &ev)
	}
}

// lost tells the owner of a slot, once, that its address space is gone.
func (e *Engine) lost(c *call) {
	s := c.slot
	if s == nil || s.gone || !errors.Is(c.err, proc.ErrGone) {
		return
	}
	s.gone = true
	if s.att.Gone != nil {
		s.att.Gone()
	}
}
