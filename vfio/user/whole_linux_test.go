package user

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The rest of the protocol: pfd does not use it, but other clients and servers do.

// WriteRegion stores p into a region, in as many messages as the limits require.
func (c *Client) WriteRegion(region int, offset uint64, p []byte) error {
	return c.chunks(p, func(p []byte, at uint64) error {
		if err := c.writeChunk(region, offset+at, p); err != nil {
			return fmt.Errorf("vfio-user: write region %d, %#x+%#x: %w", region, offset+at, len(p), err)
		}
		return nil
	})
}

// WriteMulti sends several writes of up to 8 bytes in one message, or one by one if the server
// does not support that. It returns how many were done.
func (c *Client) WriteMulti(ws []Write) (done int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := max(1, (int(c.peer.transfer)-writeMultiHead)/writeMultiSize)
	for len(ws) > 0 {
		n := min(len(ws), most)
		if !c.many {
			n = 1
		}
		if err := c.writeSome(ws[:n]); err != nil {
			return done, fmt.Errorf("vfio-user: %d writes: %w", n, err)
		}
		done += n
		ws = ws[n:]
	}
	return done, nil
}

func (c *Client) writeSome(ws []Write) error {
	if !c.many {
		w := ws[0]
		if w.Count > 8 {
			return fmt.Errorf("write of %d bytes: %w", w.Count, unix.EINVAL)
		}
		return c.writeChunk(int(w.Region), w.Offset, w.Data[:w.Count])
	}
	m, err := c.plain(CmdWriteMulti, AppendWrites(c.begin(), ws))
	if err != nil {
		return err
	}
	if len(m.body) != writeMultiHead || order.Uint64(m.body) != uint64(len(ws)) {
		return c.fail(fmt.Errorf("%w: answer to REGION_WRITE_MULTI", ErrMalformed))
	}
	return nil
}

// Flush waits until every DMA_MAP of PostMapDMA is answered. It sends nothing.
func (c *Client) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.settle(0); err != nil {
		return fmt.Errorf("vfio-user: answers to DMA_MAP: %w", err)
	}
	return nil
}

// ActIRQs masks, unmasks or triggers (action) count interrupts from start on.
func (c *Client) ActIRQs(index, start, count int, action uint32) error {
	return c.setIRQs(IRQSet{ArgSize: irqSetSize, Flags: IRQDataNone | action, Index: uint32(index), Start: uint32(start), Count: uint32(count)})
}

// ActIRQsWhere is like ActIRQs, for the interrupts whose entry is true.
func (c *Client) ActIRQsWhere(index, start int, action uint32, where []bool) error {
	m := IRQSet{ArgSize: irqSetSize + uint32(len(where)), Flags: IRQDataBool | action, Index: uint32(index), Start: uint32(start), Count: uint32(len(where))}
	m.Bools = make([]byte, len(where))
	for i, w := range where {
		if w {
			m.Bools[i] = 1
		}
	}
	return c.setIRQs(m)
}

// DisableIRQs removes every eventfd of an index.
func (c *Client) DisableIRQs(index int) error {
	return c.setIRQs(IRQSet{ArgSize: irqSetSize, Flags: IRQDataNone | IRQActionTrigger, Index: uint32(index)})
}

func (c *Client) setIRQs(m IRQSet) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.plain(CmdSetIRQs, m.Append(c.begin())); err != nil {
		return fmt.Errorf("vfio-user: interrupts %d+%d of index %d: %w", m.Start, m.Count, m.Index, err)
	}
	return nil
}

// UnmapAllDMA removes every mapping.
func (c *Client) UnmapAllDMA() error {
	return c.unmap(DMAUnmap{dmaUnmapSize, unmapAll, 0, 0}, ^uint64(0))
}

// SignalError notifies the client of an unrecoverable error of the device, if it has set the
// interrupt (VFIO_PCI_ERR_IRQ_INDEX).
func (s *Server) SignalError() { s.irq.notify(IRQErr) }

// RequestRelease asks the client to release the device, if it has set the interrupt
// (VFIO_PCI_REQ_IRQ_INDEX).
func (s *Server) RequestRelease() { s.irq.notify(IRQReq) }

// ServeConn serves one client over a connected stream socket, which it closes, and returns the
// reason when the client is gone. The error matches ErrGone for a plain disconnection, and EBUSY
// if there was a client already.
func (s *Server) ServeConn(fd int) error { return s.serve(s.admit(fd)) }

// notify signals the eventfd of an index other than MSI-X, if there is one.
func (q *interrupts) notify(index uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.signal(*q.trigger(index, 0))
}
