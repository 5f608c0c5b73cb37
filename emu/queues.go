package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/queue"
)

// DMA is the memory of a driver elsewhere, by DMA addresses: where its queues in
// memory lie.
type DMA interface {
	Read(addr uint64, p []byte) error
	Write(addr uint64, p []byte) error
}

// queueAccess has an access of a node's queues in memory made, and returns the call where
// it is to be performed.
func (e *Engine) queueAccess(n *node, a *queue.Access) *call {
	c := e.newCall()
	c.node, c.queue = n, a
	return e.begin(c)
}

// queueMove makes an access of queues in memory. Of each entry word 0 comes last:
// who sees its phase sees the rest.
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
