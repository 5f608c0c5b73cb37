// Package soc is the emulated node: the state machines of its parts (soc/r5, soc/pldma, soc/smmu,
// soc/fifo) composed behind the registers of spec/hardware.md. It is pure: events and the time go
// in, actions come out, and the same inputs produce the same outputs to the byte.
//
// docs/papers.md lists the papers that comments cite by number.
package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/wire"
)

// EventKind says what happened to a node.
type EventKind uint8

// The events.
const (
	// Tick: time has passed. Deadline returns when a Tick is due.
	Tick EventKind = iota + 1
	// FrameArrived: Frame came over the link; the node owns it from then on.
	FrameArrived
	// Walked answers a Walk: Access, and the bit masks of smmu.Walk.
	Walked
	// Moved answers a Move: Access, OK, and if not OK the number of Bytes moved before the
	// failure.
	Moved
	// DoorbellRung: the doorbell word of Slot named Channel; Words is the copy of the descriptor
	// taken with it.
	DoorbellRung
	// DescriptorCopied: Words is a copy of the descriptor of Slot's Channel; its doorbell follows
	// as a message.
	DescriptorCopied
	// MessageSent: Channel of packetizer Interface sends the first N Words to Destination, with the
	// sender's Number.
	MessageSent
	// QueueAccessed answers a QueueAccess: Access and OK.
	QueueAccessed
	// AtomicDone answers an Atomic: Access, Status, and N Words of values.
	AtomicDone
	// LinkReady: the link on the way to the node Destination takes the blocks that Ready says: the
	// firmware issues no other to that node until it takes them again. Links within one pfd are never
	// full.
	LinkReady
	// NodeGone: the node Destination is gone until LinkReady says otherwise; transfers to it end.
	NodeGone
	// NodeDrains: no new transfers to the node Destination are begun (OK), or they are again.
	NodeDrains
	// LinkUp: the link on the way to the node Destination is a new one; frames on the former one may be
	// lost.
	LinkUp
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
	Number        uint16
	Status        atomics.Status
	Ready         wire.Ready

	Frame *wire.Frame
}

// ActionKind says what a node asks its engine to do.
type ActionKind uint8

// The actions.
const (
	// Transmit: Frame goes to its destination node, this one included.
	Transmit ActionKind = iota + 1
	// Walk: translate the pages of Access; answer with Walked.
	Walk
	// Move: move the bytes of Access; answer with Moved.
	Move
	// Interrupt: send the interrupt Vector to the driver.
	Interrupt
	// DescriptorChanged: the descriptor of Slot's Channel now has Done, Status and Paused.
	DescriptorChanged
	// WordsWritten: completion words were written at VA to the memory of Slot's process.
	WordsWritten
	// MailArrived: a message is waiting in mailbox Interface, 16..63; 32..63 are threads'.
	MailArrived
	// QueueAccess: make the access to DMA memory that Queue describes; answer with QueueAccessed.
	QueueAccess
	// Atomic: perform the operation that Atomic describes; answer with AtomicDone.
	Atomic
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
	Atomic    *gsas.Access
	VA        device.VA // of WordsWritten
}
