package trace

import "structs"

// Version is the layout's. It stands in the code of the probe point, and a tracer
// attaches to no other.
const Version = 1

// Size is that of a Record, bytes.
const Size = 128

// Kind says what a Record tells of.
type Kind uint8

// The kinds.
const (
	// Fault: the outcome of a page fault is final. Its times are when the interrupt
	// half ran, the FIFO entry was read, the page-in began and ended, and the request
	// for retransmission went out or the process was asked.
	Fault Kind = 1 + iota
	// PageIn: a page-in has ended, be there a fault that waits for it or not. Its
	// times are when it began and ended.
	PageIn
	// Block: a block that was refused or asked for again has been acknowledged,
	// refused once more, or ended. Its times are when the process rang (by its own
	// word), pfd saw the doorbell, the block was out, it was acknowledged, the
	// transfer's done was published, and the process saw that (by its own word).
	Block
)

// Indices into Times.
const (
	FaultInterrupt = iota
	FaultDrained
	FaultStarted
	FaultResident
	FaultAnswered

	PageInStarted = 0
	PageInEnded   = 1

	BlockRung      = 0
	BlockKicked    = 1
	BlockSent      = 2
	BlockEnded     = 3
	BlockPublished = 4
	BlockSeen      = 5
)

// Flags of a Record.
const (
	// Write: a fault at the destination of a transfer, not at its source.
	Write = 1 << iota
	// HasBlock: the fault names a block: Source, Transaction and Sequence.
	HasBlock
	// Answers: of the faults of a block that was answered together, this one stands
	// for the answer.
	Answers
	// Final: the block's last record.
	Final
	// First: the block was refused for the first time: Rung and Kicked are of it.
	First
	// Brought: some page of a page-in is there now.
	Brought
)

// Record is one event, in the layout in which it is shown: little-endian or
// big-endian as the machine, without holes. Times are nanoseconds of
// CLOCK_MONOTONIC, 0 where the stage was not reached or is not known.
type Record struct {
	_           structs.HostLayout
	Kind        Kind   // 0
	Flags       uint8  // 1
	Method      uint8  // 2: pagein.Method
	FaultKind   uint8  // 3: 0 none, else gup.Kind + 1
	Outcome     uint8  // 4: fault.Outcome
	Policy      uint8  // 5: pagein.Policy
	Slot        uint8  // 6: of the domain
	Channel     uint8  // 7: of a block's transfer
	Node        uint32 // 8: whose driver or firmware it is
	Source      uint32 // 12: node that sends the block
	PDID        uint16 // 16: of the domain
	Transaction uint16 // 18
	Sequence    uint16 // 20: of the sending that was refused
	Status      uint16 // 22: of a block that ended, 0 acknowledged
	Pages       uint32 // 24: of a page-in, that are there now and were not
	Again       uint32 // 28: retransmissions of the block
	Fabric      uint64 // 32: what ties blocks to faults beside the sender's numbers
	Page        uint64 // 40: the address of the first page
	Span        uint32 // 48: pages asked for by a page-in
	_           [3]uint32
	Times       [6]int64 // 64
	_           [2]int64 // 112
}
