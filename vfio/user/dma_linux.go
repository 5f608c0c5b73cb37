package user

import (
	"fmt"
	"sync/atomic"
)

// DMA gives a device access to its client's memory. Each access looks the range up again, so it
// ends with the mapping, with bus mastering and with the client: a device can keep no reference
// to the memory. DMA is safe for concurrent use; revoking access waits for the accesses in
// flight.
//
// Ranges with a descriptor are copied from and to the mapped file, which sleeps only while a
// process punches a hole there or the file is being mapped. Ranges without one are accessed by
// DMA_READ and DMA_WRITE messages. Each is sent when no request of the client is unanswered, and
// its answer is awaited for up to Config.Timeout. The owner's goroutine must not wait for them,
// because the client may be waiting for the owner.
type DMA struct {
	conn   atomic.Pointer[conn]
	master atomic.Bool
}

// Read fills p from the client's memory at a DMA address. The range may span mappings. Errors
// match ErrUnmapped, ErrDenied, ErrBusMaster, ErrLost, ErrGone or an Error of the client; part of
// p may then be filled.
func (d *DMA) Read(addr uint64, p []byte) error { return d.access(touch, addr, p, false) }

// Write stores p into the client's memory at a DMA address. It returns the errors of Read; part
// of p may then be stored.
func (d *DMA) Write(addr uint64, p []byte) error { return d.access(touch, addr, p, true) }

// ReadAside is like Read but makes a system call for each mapping. An access to a page that a
// process is punching out of its file sleeps until that is done; in a system call the runtime
// runs other goroutines on this processor meanwhile.
func (d *DMA) ReadAside(addr uint64, p []byte) error { return d.access(touchAside, addr, p, false) }

// WriteAside is like Write, by system calls as in ReadAside.
func (d *DMA) WriteAside(addr uint64, p []byte) error { return d.access(touchAside, addr, p, true) }

// Do calls f with size bytes of the client's memory at a DMA address, which must be of one mapping that
// has a descriptor, and readable and writable. f must not keep them, and ends if a page is missing. Errors are those
// of Read.
func (d *DMA) Do(addr uint64, size int, f func(b []byte)) error {
	c := d.conn.Load()
	if c == nil {
		return fmt.Errorf("DMA at %#x+%#x: %w", addr, size, ErrGone)
	}
	return c.space.do(addr, size, d.allowed, f)
}

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

// allowed returns nil if the device may access memory at all.
func (d *DMA) allowed() error {
	if !d.master.Load() {
		return ErrBusMaster
	}
	return nil
}

// setMaster permits or forbids accesses. When it returns after forbidding them, no access is in
// flight and no message for one will be sent.
func (d *DMA) setMaster(on bool) {
	if c := d.conn.Load(); d.master.Swap(on) && !on && c != nil {
		c.space.drain()
	}
}

// Remote reports whether the client has mapped memory that is accessed by messages.
func (d *DMA) Remote() bool {
	c := d.conn.Load()
	return c != nil && c.remotes.Load()
}

// Mappings returns how many ranges the client has mapped, and how many files back them. Adjacent
// ranges of one file count as one.
func (d *DMA) Mappings() (ranges, files int) {
	if c := d.conn.Load(); c != nil {
		return c.space.counts()
	}
	return 0, 0
}
