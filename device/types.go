package device

import "fmt"

// VA is a virtual address in the address space of one process. It is a different type from
// DMAAddr: only a VA is translated by the SMMU.
type VA uint64

// DMAAddr is an address in device-visible memory (an IOVA of the VFIO container), which holds the
// shadow tables and descriptors of a mediated device.
type DMAAddr uint64

// NodeID identifies a node by its coordinates, 22 bits (spec/hardware.md 1; 002 III.B).
type NodeID uint32

// PDID identifies a protection domain, 16 bits; 0 is never assigned (spec/hardware.md 1, 3; 000
// §3.2).
type PDID uint16

// PDIDs that no domain has. R5s send with PDID 0 (spec/hardware.md 3), pfds with PDIDDriver
// (defined by this project), so that their messages cannot be confused.
const (
	PDIDFirmware PDID = 0
	PDIDDriver   PDID = 0xffff
	MaxPDID           = PDIDDriver - 1 // the highest PDID of a domain
)

// Generation distinguishes successive domains of one slot and PDID: a generation is not reused
// while anything sent to an earlier domain may still arrive. 0 is never assigned. Generations are
// defined by this project.
type Generation uint32

// TransactionID identifies a block in flight at its sender, 14 bits, 0..1023 used
// (spec/hardware.md 1; 000 table 3.2).
type TransactionID uint16

// Sequence is a block's sequence number, 14 bits, modulo 2^14 (spec/hardware.md 1; 001 §4.4).
type Sequence uint16

// Sizes and limits of a node (spec/hardware.md 1). Contexts and MaxVABits are defined by this
// project.
const (
	NodeIDBits   = 22
	NodeIDMask   = 1<<NodeIDBits - 1
	SequenceMask = 1<<14 - 1

	Slots           = 16   // protection-domain slots, one context bank each
	ChannelsPerSlot = 64   // channels per page: 0..31 write, 32..63 read
	WriteChannels   = 32   // the process's part of a page
	Channels        = 1024 // Slots * ChannelsPerSlot
	Transactions    = 1024 // outstanding blocks per node
	Interfaces      = 64   // mailbox and packetizer interfaces

	PageShift = 12
	PageSize  = 1 << PageShift
	BlockSize = 16 << 10 // maximum size of a transaction, cut at the destination's boundaries
	MTU       = 256      // payload of a packet
	FIFODepth = 512      // entries of RXFIFO and of TXFIFO
	Contexts  = 128      // receive contexts per node

	MaxVABits = 48 // 000 §3.2.3.2 has 39
	MinVABits = 39
)

// Page returns the address of the page that contains va.
func (va VA) Page() VA { return va &^ (PageSize - 1) }

// Offset returns va's offset within its page, in bytes.
func (va VA) Offset() uint64 { return uint64(va) & (PageSize - 1) }

// String formats va in hexadecimal.
func (va VA) String() string { return fmt.Sprintf("0x%x", uint64(va)) }

// Next returns the sequence number after s, modulo 2^14.
func (s Sequence) Next() Sequence { return (s + 1) & SequenceMask }

// Newer reports whether s comes after t, by less than half of the number space.
func (s Sequence) Newer(t Sequence) bool {
	d := (s - t) & SequenceMask
	return d != 0 && d < (SequenceMask+1)/2
}
