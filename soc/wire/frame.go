// Package wire is what travels between nodes: the frame, which the machines
// work on, and the 256-byte packet with its CRC-32C, into which a frame is cut
// wherever bytes cross something that can corrupt them (spec/messages.md 5,
// ours; MTU: 001).
//
// docs/papers.md has the papers that comments cite by number.
package wire

import "github.com/exanet/pfd/device"

// Kind tells what a frame or packet carries (spec/messages.md 5).
type Kind uint8

// The kinds.
const (
	Data    Kind = 1 // up to 64 packets of one block
	Words   Kind = 2 // the two completion words
	Ack     Kind = 3 // an acknowledgement, positive or not
	Message Kind = 4 // a packetizer's payload, one to eight u64
	Link    Kind = 5 // the number of the link for the sender's present life (ours)
)

// Header is what all packets of a frame share (spec/messages.md 5). The widths
// stand in the table beside the packet codec.
type Header struct {
	Kind Kind
	// Epoch is the sender's own in Data, Words and read requests; in Ack and
	// Message it is the destination's, carried back (0: not known).
	Epoch uint32
	// Link is in Data and Words the number that the destination has given to the
	// sender's present life, 0 none yet; in a Link frame, which answers them where it
	// is another, it is that number.
	Link uint32

	SrcNode      device.NodeID
	SrcInterface uint8       // packetizer that sent a Message
	SrcPDID      device.PDID // wired: nothing that a process writes changes it
	DstNode      device.NodeID
	DstMailbox   uint8
	DstPDID      device.PDID
	// SrcGeneration is the sender's domain's, wired; DstGeneration is the one that
	// the sender means (ours).
	SrcGeneration, DstGeneration device.Generation

	ID    device.TransactionID
	Seq   device.Sequence
	First device.Sequence // first sequence number under which this use of ID may have been sent
	Code  device.Code     // Ack only

	Block     uint32    // block number in the transfer, 19 bits
	Length    uint16    // bytes of the block, 0..16384
	VA        device.VA // destination of the block's first byte; of Words the notification address
	Remaining uint32    // bytes of the transfer from the block's first byte on
	Last      bool      // last block of the transfer
	Read      bool      // of a transfer that serves a read request
}

// Short tells whether the block belongs to a transfer of at most a block's size,
// which may lie in two blocks. The last block of a longer one is not short: it
// would overtake the others, and its fault their page-in. (The second block of a
// transfer of two cannot be told from that of a short one: it counts as short.)
func (h *Header) Short() bool { return h.Block <= 1 && h.Remaining <= device.BlockSize }

// Completion is the pair of words written beside the destination when a
// transfer is complete: First, and only then Last (001 §2.3.3.2).
type Completion struct {
	VA          device.VA
	First, Last uint64
}

// Frame is up to 64 packets of one block under one header.
type Frame struct {
	Header
	// Present, Corrupt and Duplicate have a bit a data packet, bit i for bytes
	// [256*i, 256*(i+1)) of the block: arrived, arrived with a bad payload CRC,
	// arrived more than once.
	Present, Corrupt, Duplicate uint64
	// HasWords says that completion words belong to the block (a flag of each of
	// its packets); they stand in Completion unless their packet is missing.
	HasWords     bool
	WordsMissing bool
	Completion   Completion
	// Payload holds the block's bytes, Length of them, from a Pool. Nobody writes
	// to it once the frame is sent; Shared counts who else holds it, nil: nobody.
	Payload []byte
	Shared  *Share
	// Message holds a Message's payload, MessageLen words of it.
	Message    [device.PktzMaxWords]uint64
	MessageLen uint8
	// Refs counts the memory accesses that still use Payload.
	Refs int
}

// Share counts the holders of a payload: frames, and a sender that may have to
// send it again.
type Share struct{ Holders int }

// Packets gives the number of data packets that a block of length bytes has.
func Packets(length int) int { return (length + device.MTU - 1) / device.MTU }

// All gives the bitmap of all data packets of a block of length bytes.
func All(length int) uint64 {
	n := Packets(length)
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<uint(n) - 1
}

// Block is what the firmware tells the PLDMA to send: one transaction, with the
// header that its packets carry and where its bytes come from.
type Block struct {
	Header
	Slot       uint8     // slot of the initiator's domain, whose memory is read
	Source     device.VA // the block's first byte there
	HasWords   bool
	Completion Completion
	Urgent     bool // of an urgent transfer
}
