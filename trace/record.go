package trace

import "structs"

// Version is the version of the layout. It is part of the code of the probe point, and a tracer
// attaches to no other version.
const Version = 1

// Size is the size of a Record in bytes.
const Size = 128

// Kind is the kind of event in a Record.
type Kind uint8

// The kinds.
const (
	// Fault: the outcome of a page fault is final. Its times are when the interrupt half ran,
	// the FIFO entry was read, the page-in began and ended, and the request for retransmission
	// was sent or the process was asked.
	Fault Kind = 1 + iota
	// PageIn: a page-in has ended, whether or not a fault waits for it. Its times are when it
	// began and ended.
	PageIn
	// Block: a block that was refused or requested again was acknowledged, refused once more,
	// or ended. Its times are when the process rang (its own statement), pfd saw the doorbell,
	// the block was sent, it was acknowledged, the transfer's done was published, and the
	// process saw that (its own statement).
	Block
	// Client: a process is attached to a slot; with Final, it was. It has no times.
	Client
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
	// Write: the fault is at the destination of a transfer, not at its source.
	Write = 1 << iota
	// HasBlock: the fault names a block by Source, Transaction and Sequence.
	HasBlock
	// Answers: among the faults of a block that were answered together, this one represents the
	// answer.
	Answers
	// Final: the block's last record.
	Final
	// First: this was the first refusal of the block; Rung and Kicked belong to it.
	First
	// Brought: the page-in made at least one page present.
	Brought
)

// Record is one event in the layout that is shown: the machine's byte order, without padding.
// Times are nanoseconds of CLOCK_MONOTONIC; 0 means not reached or not known.
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
	Node        uint32 // 8: the node whose driver or firmware recorded it
	Source      uint32 // 12: node that sends the block
	PDID        uint16 // 16: of the domain
	Transaction uint16 // 18
	Sequence    uint16 // 20: of the refused transmission
	Status      uint16 // 22: of a block that ended; 0: acknowledged
	Pages       uint32 // 24: of a page-in: pages that it made present, with all of the folios that came in
	Again       uint32 // 28: retransmissions of the block
	Fabric      uint64 // 32: joins blocks to faults, with the sender's numbers
	Page        uint64 // 40: the address of the first page
	Span        uint32 // 48: pages requested by a page-in
	Process     uint32 // 52: pid of the slot's process, as pfd sees it; 0: unknown
	_           [2]uint32
	Times       [6]int64 // 64
	Obeyed      int64    // 112: of a block: when the request for its retransmission was executed
	_           int64
}
