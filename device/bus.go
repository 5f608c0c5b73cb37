package device

import (
	"context"
	"errors"
)

// WindowID identifies one of a node's register windows (spec/hardware.md 2).
type WindowID uint8

// The five windows, in the order of their BARs.
const (
	PL   WindowID = iota // programmable logic: control, counters, FIFOs, domains
	SMMU                 // the SMMU's global pages and context banks
	BTCM                 // the R5 scratchpad: descriptors and doorbells
	PKTZ                 // packetizers, one page per interface
	MBOX                 // mailboxes, one page per interface
	Windows
)

var windowNames = [Windows]string{"pl", "smmu", "btcm", "pktz", "mbox"}
var windowSizes = [Windows]uint32{128 << 10, 128 << 10, 128 << 10, 256 << 10, 256 << 10}

// String returns the window's name as in spec/hardware.md 2 and UIO.
func (w WindowID) String() string {
	if w >= Windows {
		return "window?"
	}
	return windowNames[w]
}

// Size returns the window's size in bytes (spec/hardware.md 2).
func (w WindowID) Size() uint32 {
	if w >= Windows {
		return 0
	}
	return windowSizes[w]
}

// ErrGone means that the device behind a window no longer responds: its server died or its bus
// was closed. The value of a failed read is undefined.
var ErrGone = errors.New("device gone")

// Access is the way to the registers of a window. The width of an access is 4 or 8 bytes; bits of
// a value above it are ignored.
type Access interface {
	Load(offset uint32, width int) (uint64, error)
	Store(offset uint32, width int, value uint64) error
}

// Window is one register window of a node. Each call is exactly one access of its width. An
// access that is unaligned, of a width that the register does not allow, or to a hole is not an
// error: it reads as zero, is ignored on write and counts in BAD_ACCESS (spec/hardware.md 2). An
// error means that the device could not be reached, and matches ErrGone. Windows are used only on
// the goroutine that owns them (Bus).
type Window struct{ Access }

// Read32 reads 32 bits.
func (w Window) Read32(offset uint32) (uint32, error) {
	v, err := w.Load(offset, 4)
	return uint32(v), err
}

// Read64 reads 64 bits.
func (w Window) Read64(offset uint32) (uint64, error) { return w.Load(offset, 8) }

// Write32 writes 32 bits.
func (w Window) Write32(offset, value uint32) error { return w.Store(offset, 4, uint64(value)) }

// Write64 writes 64 bits.
func (w Window) Write64(offset uint32, value uint64) error { return w.Store(offset, 8, value) }

// Vectors of the device's interrupts (spec/hardware.md 2).
const (
	VectorFault   = 0 // SMMU context or global fault
	VectorFIFO    = 1 // RXFIFO or TXFIFO not empty
	VectorMailbox = 2 // one of mailboxes 3..15 not empty
	VectorDone    = 3 // a transfer's done changed
	Vectors       = 4
)

// Handler is the driver's interrupt half. Interrupt runs on the goroutine that owns the windows,
// never concurrently with itself or with posted functions, and must not block.
type Handler interface {
	Interrupt(vector int)
}

// Bus connects a driver to one node. One goroutine owns the windows. Everything that touches them
// or the driver's state runs there: Interrupt and posted functions. So no register and
// no driver state needs a lock.
type Bus interface {
	// Window returns one of the node's windows.
	Window(WindowID) Window
	// Serve delivers interrupts to h until ctx ends, then returns nil, or until the device is
	// gone, then returns an error that matches ErrGone.
	Serve(ctx context.Context, h Handler) error
	// Post runs f on the owning goroutine, after the function that is running there. Any
	// goroutine may call it. After the end of the bus f is dropped.
	Post(f func())
}
