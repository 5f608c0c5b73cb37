package session

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
	"github.com/exanet/pfd/trace"
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

	// Features returns what this machine can do besides, always the same. Any
	// goroutine may call it.
	Features() Features
}

// Features is what not every Machine can do; it cannot where a field is nil. The functions
// are called on the goroutine that owns the node where they do not say otherwise.
type Features struct {
	// Sharing is the machine's where its devices do not see the processes' page tables.
	Sharing Sharing
	// NewView makes a session's view of what its process shares, whose page tables b
	// bounds: the machine reaches that memory by itself. Any goroutine may call it.
	NewView func(b view.Budget) (*view.View, error)
	// Reconnect waits until a node's device is there again, or ctx ends: devices live
	// elsewhere, and go and come back. Any goroutine may call it.
	Reconnect func(ctx context.Context, node int) error
	// Server returns the pid of the process of this machine that serves a node, 0 if
	// there is none.
	Server func(node int) int

	// Accesses counts how the machine reaches processes' memory.
	Accesses func(node int) emu.Accesses
	// Ended counts the transfers that have ended.
	Ended func(node int) *tally.Node
	// Invalidations counts the pages of each slot that have been taken away.
	Invalidations func(node int) [device.Slots]tally.Invalidated
	// Transactions returns the transactions of a node that are in flight; now is the
	// clock, in ns, of their times.
	Transactions func(node int) (list []r5.TransactionInfo, now int64)
	// Firmware names the optimizations of the nodes' firmware, as r5.ParseOptions
	// takes them. Any goroutine may call it.
	Firmware func() string
	// Recording reports whether the nodes' inputs are still being recorded. Any
	// goroutine may call it.
	Recording func() bool
	// Log is where the machine keeps the records of faults and refused blocks; it
	// shows them itself when it has time.
	Log *trace.Log
	// Tap has f called with each frame that a node sends and the time, in ns since
	// 1970; nil ends that. f does not block and keeps nothing. Any goroutine may call
	// Tap.
	Tap func(f func(at int64, f *wire.Frame))
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
