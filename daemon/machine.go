package daemon

import (
	"context"
	"log/slog"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/memport"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/view"
)

// Machine is what the daemon needs from what lies behind device.Bus: emu's
// engine, or a fake with a map of registers in tests. One goroutine owns the
// windows of all nodes.
type Machine interface {
	// Nodes gives the number of nodes.
	Nodes() int
	// Bus gives the way to a node.
	Bus(node int) device.Bus
	// Run drives the machine until ctx ends (it then returns nil) or it fails.
	Run(ctx context.Context) error

	// Attach ties a process's pages to a slot. Called on the owning goroutine.
	Attach(node, slot int, a *Attachment) error
	// Detach undoes it: after it the machine does not touch the attachment any
	// more. Called on the owning goroutine, after the slot is quiet.
	Detach(node, slot int)
}

// accessor is a Machine that counts how it reaches processes' memory. Called on the owning
// goroutine.
type accessor interface{ Accesses(node int) emu.Accesses }

// invalidator is a Machine that sees pages that have been taken away, and says how
// many of each slot. It is called on the node's owning goroutine.
type invalidator interface {
	Invalidations(node int) [device.Slots]tally.Invalidated
}

// servant is a Machine whose nodes may be served by another process of this machine,
// and gives its pid, or 0. Called on the node's owning goroutine.
type servant interface{ Server(node int) int }

// ender is a Machine that counts the transfers that have ended. Called on the node's
// owning goroutine, where the counts are looked at, too.
type ender interface{ Ended(node int) *tally.Node }

// transactor is a Machine whose firmware tells its transactions in flight. now
// is the clock, ns, that their times are of. Called on the owning goroutine.
type transactor interface {
	Transactions(node int) (list []r5.TransactionInfo, now int64)
}

// firmwareTeller is a Machine that knows which optimizations its firmware has, in
// the words of r5.ParseOptions. Any goroutine.
type firmwareTeller interface{ Firmware() string }

// tapper is a Machine whose frames can be seen: f is called with each that a node
// sends and the time, ns since 1970, on the owning goroutine; it does not block and
// keeps nothing. Tap(nil) ends that. Any goroutine.
type tapper interface {
	Tap(f func(at int64, f *wire.Frame))
}

// Viewer is a Machine that reaches by itself what processes share of their memory.
type Viewer interface {
	Machine
	// NewView makes a session's view, whose page tables b bounds. Any goroutine may call it.
	NewView(b view.Budget) (*view.View, error)
}

// Attachment is what the machine gets of a process.
type Attachment struct {
	Pages   *attach.Pages // descriptors, doorbell, packetizer, wake flags
	Wake    int           // eventfd by which the process wakes a sleeping pfd
	Process *proc.Process // its memory
	// Port, where it is not nil, is the way to its memory in place of Process.
	Port *memport.Port
	// View, where it is not nil, is what the process shares of it.
	View *view.View
	// ReadOnly is what the process shares for reading alone.
	ReadOnly *view.ReadOnly
	UID      uint32 // of its user
	PID      int    // its own, for traces
	// Gone is called on the owning goroutine when the machine finds that the
	// process's address space is gone (exit or exec). It does not block.
	Gone func()
	// Declined is called on the owning goroutine with each RAPF with the fail bit that the
	// process wants sent, to source; where it is true, the RAPF is not sent. It does not block.
	Declined func(source device.NodeID, r mailbox.RAPF) bool
	Log      *slog.Logger // names node, process and user; nil: the machine's
}
