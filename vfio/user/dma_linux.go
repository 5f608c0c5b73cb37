package user

import (
	"fmt"
	"sync/atomic"
)

// DMA is a device's way to its client's memory. Every access looks the range up
// anew, so it ends with the mapping, with bus mastering, and with the client:
// there is nothing that a device could keep. It may be used from any goroutine;
// what ends accesses waits for those in flight.
//
// Ranges with a descriptor are copied from and to the mapped file, which sleeps only while
// a hole is punched there or the file is being mapped. Ranges without one are reached by DMA_READ and DMA_WRITE messages, each
// sent when no request of the client is unanswered and awaited up to Config.Timeout.
// The owner's goroutine must not wait for them: the client may wait for the owner.
type DMA struct {
	conn   atomic.Pointer[conn]
	master atomic.Bool
}

// Read fills p from the client's memory at a DMA address. The range may span
// mappings. Errors match ErrUnmapped, ErrDenied, ErrBusMaster, ErrLost, ErrGone
// or an Error of the client; p may be filled in part then.
func (d *DMA) Read(addr uint64, p []byte) error { return d.access(touch, addr, p, false) }

// Write stores p into the client's memory at a DMA address, with the errors of
// Read; part of it may be stored then.
func (d *DMA) Write(addr uint64, p []byte) error { return d.access(touch, addr, p, true) }

// ReadAside and WriteAside are Read and Write by a system call for each mapping. An access to
// a page that a process is punching out of its file sleeps until that is done: here
// the runtime lends the goroutine's processor to others meanwhile.
func (d *DMA) ReadAside(addr uint64, p []byte) error { return d.access(touchAside, addr, p, false) }

// WriteAside: see ReadAside.
func (d *DMA) WriteAside(addr uint64, p []byte) error { return d.access(touchAside, addr, p, true) }

func (d *DMA) access(by toucher, addr uint64, p []byte, write bool) error {
	c := d.conn.Load()
	err := ErrGone
	if c != nil {
		err = c.space.accessBy(by, addr, p, write, d.allowed, c.remote)
	}
	if err != nil {
		return fmt.Errorf("DMA at %#x+%#x: %w", addr, len(p), err)
	}
	return nil
}

// allowed says whether the device may access memory at all.
func (d *DMA) allowed() error {
	if !d.master.Load() {
		return ErrBusMaster
	}
	return nil
}

// setMaster switches accesses on or off. None is under way after they are off, and
// no message for one will be sent.
func (d *DMA) setMaster(on bool) {
	if c := d.conn.Load(); d.master.Swap(on) && !on && c != nil {
		c.space.drain()
	}
}

// Remote tells whether the client has mapped memory that is reached by messages.
func (d *DMA) Remote() bool {
	c := d.conn.Load()
	return c != nil && c.remotes.Load()
}

// Mappings gives how many ranges the client has mapped, and how many files are
// behind them. Ranges that adjoin in one file are one.
func (d *DMA) Mappings() (ranges, files int) {
	if c := d.conn.Load(); c != nil {
		return c.space.counts()
	}
	return 0, 0
}
