package daemon

import (
	"context"
	"log/slog"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/soc/r5"
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

	// Channels peeks at the channels of a node that have been used. Called on
	// the owning goroutine.
	Channels(node int) []ChannelInfo
	// FIFO peeks at a fault FIFO, oldest first, and pops nothing. Called on the
	// owning goroutine.
	FIFO(node int, source bool) []FIFOInfo
}

// leaser is a Machine that counts the memory accesses that slept so long that
// their domain was given a worker of its own. Called on the owning goroutine.
type leaser interface{ LeasesLost(node int) uint64 }

// invalidator is a Machine that sees pages that have been taken away. It is called
// on the node's owning goroutine.
type invalidator interface{ Invalidations(node int) uint64 }

// transactor is a Machine whose firmware tells its transactions in flight. now
// is the clock, ns, that their times are of. Called on the owning goroutine.
type transactor interface {
	Transactions(node int) (list []r5.TransactionInfo, now int64)
}

// firmwareTeller is a Machine that knows which optimizations its firmware has, in
// the words of r5.ParseOptions. Any goroutine.
type firmwareTeller interface{ Firmware() string }

// Attachment is what the machine gets of a process.
type Attachment struct {
	Pages   *attach.Pages // descriptors, doorbell, packetizer, wake flags
	Wake    int           // eventfd by which the process wakes a sleeping pfd
	Process *proc.Process // its memory
	// Gone is called on the owning goroutine when the machine finds that the
	// process's address space is gone (exit or exec). It does not block.
	Gone func()
	Log  *slog.Logger // names node, process and user; nil: the machine's
}

// ChannelInfo is a channel as the firmware holds it: its last transfer.
type ChannelInfo struct {
	Slot, Channel int
	PDID          device.PDID       // of the slot, when the transfer began
	DstPDID       device.PDID       // of the destination
	Descriptor    device.Descriptor // as taken at the doorbell, with its present done and status
	IssuedBytes   uint64
	Blocks, Acked int // blocks of the transfer; acknowledged ones
	InFlight      int // blocks issued and not acknowledged
	Paused        int // of these, waiting for a RAPF or the guard

	// Live: the firmware has told what follows of the transfer under way.
	Live           bool
	Class          string          // high, medium, low
	Window         int             // blocks that may be in flight
	Oldest, Newest device.Sequence // of the blocks in flight that were issued first and last
	AgeNS          int64           // since it began
}

// FIFOInfo is an entry of a fault FIFO with its RXFIFO_EXT.
type FIFOInfo struct {
	Entry     device.FaultEntry
	Remaining uint32 // bytes
}
