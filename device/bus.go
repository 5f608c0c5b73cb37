package device

import (
	"context"
	"errors"
)

// WindowID names one of a node's register windows (spec/hardware.md 2).
type WindowID uint8

// The five windows, in the order of their BARs.
const (
	PL   WindowID = iota // programmable logic: control, counters, FIFOs, domains
	SMMU                 // the SMMU's global pages and context banks
	BTCM                 // the R5 scratchpad: descriptors and doorbells
	PKTZ                 // packetizers, a page an interface
	MBOX                 // mailboxes, a page an interface
	Windows
)

var windowNames = [Windows]string{"pl", "smmu", "btcm", "pktz", "mbox"}
var windowSizes = [Windows]uint32{128 << 10, 128 << 10, 128 << 10, 256 << 10, 256 << 10}

// String gives the window's name as spec/hardware.md 2 and UIO have it.
func (w WindowID) String() string {
	if w >= Windows {
		return "window?"
	}
	return windowNames[w]
}

// Size gives the window's size in bytes (spec/hardware.md 2).
func (w WindowID) Size() uint32 {
	if w >= Windows {
		return 0
	}
	return windowSizes[w]
}

// ErrGone says that the device behind a window does not answer any more: its
// server died or its bus was closed. What was not read is unknown.
var ErrGone = errors.New("device gone")

// Window is one register window of a node. Each call is exactly one access of
// its width. An access that is unaligned, of another width than the register
// allows, or to a hole is no error here: it reads as zero, is ignored on write
// and counts in BAD_ACCESS (spec/hardware.md 2). An error means that the device
// could not be reached and matches ErrGone. Windows are used only on the
// goroutine that owns them (Bus).
type Window interface {
	Read32(offset uint32) (uint32, error)
	Read64(offset uint32) (uint64, error)
	Write32(offset uint32, value uint32) error
	Write64(offset uint32, value uint64) error
}

// Vectors of the device's interrupts (spec/hardware.md 2).
const (
	VectorFault   = 0 // SMMU context or global fault
	VectorFIFO    = 1 // RXFIFO or TXFIFO not empty
	VectorMailbox = 2 // one of mailboxes 3..15 not empty
	VectorDone    = 3 // a transfer's done changed
	Vectors       = 4
)

// Handler is the driver's interrupt half. Interrupt runs on the goroutine that
// owns the windows, never concurrently with itself or with posted functions,
// and must not block.
type Handler interface {
	Interrupt(vector int)
}

// Call is a piece of work that may sleep in the kernel. Run is called on some
// goroutine with nothing of the driver's state in reach; Done is called after
// it on the goroutine that owns the windows.
type Call interface {
	Run()
	Done()
}

// Bus is the way to one node. One goroutine owns the windows; everything that
// touches them, or the driver's state, runs there: Interrupt, posted functions,
// Call.Done. So no register and no piece of driver state needs a lock.
type Bus interface {
	// Window gives one of the node's windows.
	Window(WindowID) Window
	// Serve delivers interrupts to h until ctx ends (it then returns nil) or
	// the device is gone (an error that matches ErrGone).
	Serve(ctx context.Context, h Handler) error
	// Post runs f on the owning goroutine, after what runs there now. Any
	// goroutine may call it. After the end of the bus f is dropped.
	Post(f func())
	// Do has c.Run called where a long sleep delays nobody but slot, and then
	// c.Done on the owning goroutine. It is called on the owning goroutine and
	// returns before Run starts. long says that the call is known to take
	// tens of microseconds and belongs on another CPU: a long and a short call
	// of one slot may run at the same time.
	Do(slot int, c Call, long bool)
}
