package session

import (
	"context"
	"log/slog"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/shadow"
	"github.com/exanet/pfd/space/view"
	"github.com/exanet/pfd/trace"
)

// Machine is the implementation behind device.Bus. Package daemon implements it by emu's engine
// (emulated) and for devices elsewhere (mediated), and its tests by a map of registers. A goroutine
// of the machine's owns the windows.
type Machine interface {
	// Nodes returns the number of nodes.
	Nodes() int
	// Bus returns the bus to a node.
	Bus(node int) device.Bus
	// Space returns what pages in for the driver of a node. It is not the memory of one process
	// (Attachment.Space).
	Space(node int) space.Machine
	// Run drives the machine until ctx ends (it then returns nil) or it fails.
	Run(ctx context.Context) error

	// Attach assigns a process's pages to a slot. Called on the owning goroutine.
	Attach(node, slot int, a *Attachment) error
	// Detach undoes Attach: the machine does not touch the attachment any more. Called on the
	// owning goroutine, when the slot has no access in flight.
	Detach(node, slot int)

	// Features returns the optional features of the machine, which never change. Any
	// goroutine may call it.
	Features() Features
}

// Features are functions that not every Machine has. A nil field is a missing feature. The
// functions are called on the owning goroutine unless they say otherwise.
type Features struct {
	// Sharing is set if the devices do not see the processes' page tables.
	Sharing Sharing
	// Base is the node id of the first node, and the others follow it; 0 if the devices, which are
	// elsewhere, have their own ids. Any goroutine may read it.
	Base device.NodeID
	// NewView returns a view of the memory that a process shares, whose page tables b bounds.
	// The machine accesses that memory by it. Any goroutine may call it.
	NewView func(b view.Budget) (*view.View, error)
	// GSAS is set if threads of the global shared address space can use the nodes whose CAPS says so.
	GSAS GSAS
	// Tell sends a message to the pfd of another host; nil: there are no other hosts. It does not wait. Any
	// goroutine may call it.
	Tell func(host string, message []byte) error
	// Reconnect waits until a node's device, which is elsewhere, is back, or ctx ends. Any
	// goroutine may call it.
	Reconnect func(ctx context.Context, node int) error
	// Server returns the pid of the process of this machine that serves a node, 0 if
	// there is none.
	Server func(node int) int

	// Accesses counts accesses to processes' memory.
	Accesses func(node int) emu.Accesses
	// Transfers counts the transfers that have ended.
	Transfers func(node int) *tally.Node
	// Invalidations counts the pages of each slot that were invalidated.
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
	// Log is the machine's log of faults and refused blocks. The machine shows it when it is
	// idle.
	Log *trace.Log
	// Tap makes the machine call f with each frame that a node sends and the time, in ns
	// since 1970; nil ends that. f must not block and must not keep the frame. Any goroutine
	// may call Tap.
	Tap func(f func(at int64, f *wire.Frame))
}

// GSAS is a machine whose nodes have threads and units of the global shared address space. Its methods are
// called on the owning goroutine.
type GSAS interface {
	// AttachThread connects interface iface to thread index of the process in a slot; DetachThread
	// undoes that.
	AttachThread(node, slot, index, iface int) error
	DetachThread(node, slot, index int)
	// SetTree makes known what memory a tree has on a node; nil: none any more. None of its pages is
	// valid then, or under way. A machine with Sharing closes the tree's FD.
	SetTree(node int, p atomics.Protection, t *emu.Tree)
	// OnCall makes f perform the operations that are not the units'. AnswerCall answers one.
	OnCall(f func(node int, c atomics.Call))
	AnswerCall(node int, id uint32, s atomics.Status, values ...uint64)
}

// Sharing is a machine whose devices do not see the processes' page tables: processes share memory,
// and pfd keeps tables of it. Any goroutine may call a method unless its comment says otherwise.
type Sharing interface {
	// Tables returns TTBR0 of a slot's context bank. Called on the owning goroutine.
	Tables(node, slot int) uint64
	// Share and Unshare handle a process's requests.
	Share(node, slot int, s attach.Share, fd int) error
	Unshare(node, slot int, r attach.Range) error
	// Unsharer returns a function that revokes what a slot shares at va now, and nothing that is shared
	// there later. The function reports whether that was still shared.
	Unsharer(node, slot int, va device.VA) func() bool
	// Prefetch enters pages of shared memory, as far as there is room.
	Prefetch(node, slot int, va device.VA, size uint64)
	// Invalidate removes pages from the device that the file no longer has.
	Invalidate(node, slot int, va device.VA, size uint64)
	// Writable reports whether memory at va is shared for writing.
	Writable(node, slot int, va device.VA) bool
	// ReadOnly reports whether any of a range is shared read-only.
	ReadOnly(node, slot int, va device.VA, size uint64) bool
	// Page returns the size of the pages in which memory is shared, 0 if the device is gone.
	Page(node int) uint64
	// Asked notes that a slot's process is about to be asked to page in. Called on the owning
	// goroutine.
	Asked(node, slot int, f netlink.Fault)
	// Shadow returns what the device can access of the processes' memory.
	Shadow(node int) (shadow.Stats, bool)
	// Messages returns how many messages were sent to the device, and how many of these pfd waited
	// for.
	Messages(node int) (sent, awaited uint64, ok bool)
}

// Attachment is the part of a process's attachment that a machine needs.
type Attachment struct {
	Pages *attach.Pages // descriptors, doorbell, packetizer, wake flags
	Wake  int           // eventfd that wakes pfd
	Bells *attach.Bells // the process's rings; they change on the owning goroutine
	// Space is its memory; nil: the machine accesses only what the process shares (Sharing).
	Space space.Space
	// ReadOnly is the memory that the process shares read-only.
	ReadOnly *view.ReadOnly
	UID      uint32 // of its user
	PID      int    // its own, for traces
	// Gone is called on the owning goroutine when the machine finds that the process's address
	// space is gone (exit or exec). It does not block.
	Gone func()
	// Declined is called on the owning goroutine with each RAPF with the fail bit that the
	// process sends to source. If it returns true, the RAPF is dropped. It does not block.
	Declined func(source device.NodeID, r mailbox.RAPF) bool
	Log      *slog.Logger // names node, process and user; nil: the machine's
}
