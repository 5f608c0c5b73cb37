// Package soc is the emulated node: the machines of its parts (soc/r5, soc/pldma,
// soc/smmu, soc/fifo) composed behind the registers of spec/hardware.md. It is
// pure: events and the time go in, actions come out, and the same inputs give
// the same outputs to the byte.
//
// docs/papers.md has the papers that comments cite by number.
package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/wire"
)

// EventKind tells what has happened to a node.
type EventKind uint8

// The events.
const (
	// Tick: nothing but time. Deadline says when one is due.
	Tick EventKind = iota + 1
	// FrameArrived: Frame came over the link; it is the node's from then on.
	FrameArrived
	// Walked answers a Walk: Access, and the bits of smmu.Walk.
	Walked
	// Moved answers a Move: Access, OK, and where not OK the Bytes that were
	// moved, from the first on.
	Moved
	// DoorbellRung: the doorbell word of Slot named Channel; Words is the copy
	// of the descriptor that was taken with it.
	DoorbellRung
	// DescriptorCopied: Words is a copy of Slot's Channel's descriptor, for a
	// doorbell that follows as a message.
	DescriptorCopied
	// MessageSent: packetizer Interface's Channel was told to SEND N of Words
	// to Destination.
	MessageSent
	// QueueAccessed answers a QueueAccess: Access, and OK.
	QueueAccessed
)

// Event is one input of a node.
type Event struct {
	Kind EventKind
	OK   bool

	Access           uint32
	Absent, Denied   uint64
	Unused, External uint64
	Bytes            int

	Slot, Channel int
	Interface     int
	Destination   uint64
	Words         [device.DescriptorWords]uint64
	N             int

	Frame *wire.Frame
}

// ActionKind tells what a node wants done.
type ActionKind uint8

// The actions.
const (
	// Transmit: Frame goes to its destination node, this one included.
	Transmit ActionKind = iota + 1
	// Walk: translate the pages of Access, answer with Walked.
	Walk
	// Move: move the bytes of Access, answer with Moved.
	Move
	// Interrupt: send Vector to the driver.
	Interrupt
	// DescriptorChanged: Slot's Channel has Done, Status and Paused.
	DescriptorChanged
	// WordsWritten: completion words came into the memory of Slot's process.
	WordsWritten
	// MailArrived: a message waits in mailbox Interface, 16..63.
	MailArrived
	// QueueAccess: make the access of DMA memory that Queue says, answer with
	// QueueAccessed.
	QueueAccess
)

// Action is one output of a node.
type Action struct {
	Kind      ActionKind
	Slot      uint8
	Channel   uint8
	Interface uint8
	Vector    uint8
	Status    uint8
	Paused    uint8
	Done      uint32
	Access    *pldma.Access
	Frame     *wire.Frame
	Queue     *queue.Access
}
