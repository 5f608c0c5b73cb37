package user

import (
	"fmt"
	"sync/atomic"
)

// DMA is a device's way to its client's memory. Every access looks the range up
// anew, so it ends with the mapping, with bus mastering, and with the client:
// there is nothing that a device could keep. It may be used from any goroutine;
// an unmap waits for the accesses in flight.
//
// Ranges with a descriptor are copied from and to the mapped file and never
// block. Ranges without one are reached by DMA_READ and DMA_WRITE messages,
// which wait for the client up to Config.Timeout.
type DMA struct {
	conn   atomic.Pointer[conn]
	master atomic.Bool
}

// Read fills p from the client's memory at a DMA address. The range may span
// mappings. Errors match ErrUnmapped, ErrDenied, ErrBusMaster, ErrLost, ErrGone
// or an Error of the client; p may be filled in part then.
func (d *DMA) Read(addr uint64, p []byte) error { return d.access(addr, p, false) }

// Write stores p into the client's memory at a DMA address, with the errors of
// Read; part of it may be stored then.
func (d *DMA) Write(addr uint64, p []byte) error { return d.access(addr, p, true) }

func (d *DMA) access(addr uint64, p []byte, write bool) error {
	if !d.master.Load() {
		return fmt.Errorf("DMA at %#x: %w", addr, ErrBusMaster)
	}
	c := d.conn.Load()
	if c == nil {
		return fmt.Errorf("DMA at %#x: %w", addr, ErrGone)
	}
	if err := c.space.access(addr, p, write, c.remote); err != nil {
		return fmt.Errorf("DMA at %#x+%#x: %w", addr, len(p), err)
	}
	return nil
}

// Mappings gives how many ranges the client has mapped, and how many files are
// behind them.
func (d *DMA) Mappings() (ranges, files int) {
	if c := d.conn.Load(); c != nil {
		return c.space.counts()
	}
	return 0, 0
}
