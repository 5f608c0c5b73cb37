package emu

import (
	"errors"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space/proc"
)

// pagesIn reports whether the call is a page-in for the driver.
func (c *call) pagesIn() bool { return c.op != nil && c.op.PagesIn() }

// user returns the user to whom the call is charged.
func (c *call) user() uint32 {
	switch {
	case c.slot != nil:
		return c.slot.att.UID
	case c.atomic != nil:
		return c.atomic.tree.UID
	}
	return noUser
}

// noUser is charged for calls without a process. (uid_t)-1 is never a user's ID (setuid(2)).
const noUser = ^uint32(0)

func spanPages(from, to device.VA) int {
	return int((uint64(to)+device.PageSize-1)>>device.PageShift - uint64(from)>>device.PageShift)
}

func (c *call) add(a *pldma.Access) {
	i := c.count
	c.ids[i], c.vas[i], c.lens[i], c.bufs[i] = a.ID, a.VA, len(a.Data), a.Data
	c.count++
}

// run runs the call. It may sleep.
func (c *call) run() {
	switch {
	case c.queue != nil:
		c.err = c.queueMove()
	case c.bell != nil:
		c.struck = c.bell.Strike()
	case c.atomic != nil:
		c.err = c.atomic.run(c.step)
	case c.op.PagesIn():
		c.op.Start()
		c.space.Run(c.op)
		c.op.End()
	default:
		c.space.Run(c.op)
	}
}

// queueMove accesses queues in memory. It writes word 0 of each entry last: a reader that sees the
// entry's phase sees the rest of it.
func (c *call) queueMove() error {
	a, dma := c.queue, c.node.outside.DMA
	if !a.Write {
		return dma.Read(a.Addr, a.Data)
	}
	if !a.Entries {
		return dma.Write(a.Addr, a.Data)
	}
	for i := 0; i < len(a.Data); i += device.QueueEntrySize {
		entry, at := a.Data[i:i+device.QueueEntrySize], a.Addr+uint64(i)
		if err := dma.Write(at+8, entry[8:]); err != nil {
			return err
		}
		if err := dma.Write(at, entry[:8]); err != nil {
			return err
		}
	}
	return nil
}

// buffers returns the bytes of the accesses from the first on in as few pieces as they are
// contiguous in memory: each piece costs the kernel one more page and one more copy.
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

// share records that n bytes were moved of the accesses from number i on. It returns the number of
// the first access that is incomplete, or count.
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

// rest records what has been moved, and reports whether there is more to move: an access that cannot
// be moved to its end stops none of those that were joined behind it, unless the address space is
// gone. op is then the move of the rest.
func (c *call) rest() bool {
	i := c.share(c.from, c.op.Moved)
	if i+1 >= c.count || c.refused || c.op.Err != nil && errors.Is(c.op.Err, proc.ErrGone) {
		return false
	}
	c.from = i + 1
	c.own.Again(c.own.Kind, c.own.Write, c.vas[c.from], 0, c.buffers(c.from))
	return true
}
