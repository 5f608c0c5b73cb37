// Package wire defines what travels between nodes: the frame, which the machines work on, and the
// 256-byte packet with its CRC-32C, into which a frame is cut wherever bytes cross a medium that
// can corrupt them (spec/messages.md 5, defined by this project; MTU: 001).
//
// docs/papers.md lists the papers that comments cite by number.
package wire

import "github.com/exanet/pfd/device"

// Kind is the type of a frame or packet (spec/messages.md 5).
type Kind uint8

// The kinds.
const (
	Data    Kind = 1 // up to 64 packets of one block
	Words   Kind = 2 // the two completion words
	Ack     Kind = 3 // an acknowledgement, positive or not
	Message Kind = 4 // a packetizer's payload, one to eight u64
	Link    Kind = 5 // the number of the link for the sender's current life (defined by this project)
)

// Header is the header that all packets of a frame share (spec/messages.md 5). The field widths
// are in the table beside the packet codec.
type Header struct {
	Kind Kind
	// Epoch is the sender's own in Data, Words and read requests; in Ack and Message it is the
	// destination's, carried back (0: unknown).
	Epoch uint32
	// Link in Data and Words is the number that the destination assigned to the sender's current
	// life, 0 for none yet. A Link frame answers a wrong number with the right one.
	Link uint32

	SrcNode      device.NodeID
	SrcInterface uint8       // packetizer that sent a Message
	SrcPDID      device.PDID // wired: not writable by a process
	DstNode      device.NodeID
	DstMailbox   uint8
	DstPDID      device.PDID
	// SrcGeneration is that of the sender's domain, wired; DstGeneration is that of the domain
	// that the sender addresses (defined by this project).
	SrcGeneration, DstGeneration device.Generation

	ID    device.TransactionID
	Seq   device.Sequence
	First device.Sequence // first sequence number under which this use of ID may have been sent
	Code  device.Code     // Ack only

	Block     uint32    // block number in the transfer, 19 bits
	Length    uint16    // bytes of the block, 0..16384
	VA        device.VA // destination of the block's first byte; in Words the notification address
	Remaining uint32    // bytes of the transfer from the block's first byte on
	Last      bool      // last block of the transfer
	Read      bool      // of a transfer that serves a read request
}

// Short reports whether the block belongs to a transfer of at most a block's size, which may span
// two blocks. The last block of a longer transfer is not short: it would overtake the others, and
// its fault would overtake their page-ins. (The second block of a two-block transfer cannot be
// distinguished from that of a short one: it counts as short.)
func (h *Header) Short() bool { return h.Block <= 1 && h.Remaining <= device.BlockSize }

// Ready says which blocks a link takes (defined by this project).
type Ready uint8

// The states of a link.
const (
	NotReady   Ready = iota // none: it is full, or down
	ReadyShort              // those of Short
	ReadyAll
)

// Completion is the pair of words written beside the destination when a transfer is complete:
// First, then Last (001 §2.3.3.2).
type Completion struct {
	VA          device.VA
	First, Last uint64
}

// Frame is up to 64 packets of one block under one header.
type Frame struct {
	Header
	// Present, Corrupt and Duplicate have one bit per data packet, bit i for bytes [256*i,
	// 256*(i+1)) of the block: arrived, arrived with a bad payload CRC, arrived more than once.
	Present, Corrupt, Duplicate uint64
	// HasWords means that completion words belong to the block (a flag of each of its packets);
	// they are in Completion unless their packet is missing.
	HasWords     bool
	WordsMissing bool
	Completion   Completion
	// Payload holds the block's bytes, Length of them, from a Pool. It must not be written after
	// the frame is sent. Shared counts its holders; nil means that the frame is the only one.
	Payload []byte
	Shared  *Share
	// Message holds a Message's payload, MessageLen words of it.
	Message    [device.PktzMaxWords]uint64
	MessageLen uint8
	// Refs counts the memory accesses that still use Payload.
	Refs int
}

// Share counts the holders of a payload: frames, and a sender that may have to retransmit it.
type Share struct{ Holders int }

// Packets returns the number of data packets of a block of length bytes.
func Packets(length int) int { return (length + device.MTU - 1) / device.MTU }

// All returns the bitmap of all data packets of a block of length bytes.
func All(length int) uint64 {
	n := Packets(length)
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<uint(n) - 1
}

// Block is an order of the firmware to the PLDMA to send one transaction, with the header that
// its packets carry and the address of its bytes.
type Block struct {
	Header
	Slot       uint8     // slot of the initiator's domain, whose memory is read
	Source     device.VA // the block's first byte there
	HasWords   bool
	Completion Completion
	Urgent     bool // of an urgent transfer
}
