package device

// DescriptorSize is the size of a channel descriptor in bytes (001 §2.3.3.2).
const DescriptorSize = 64

// DescriptorWords is the number of u64 in a descriptor (001 §2.3.3.2).
const DescriptorWords = DescriptorSize / 8

// Offsets in a channel descriptor, little-endian (spec/messages.md 1; 001 §2.3.3.2). The contents of
// the reserved words are defined by this project.
const (
	DescSrc       = 0  // u64 VA: the initiator's for a write
	DescDst       = 8  // u64 VA: the target's for a write
	DescNotify    = 16 // u64 VA of the two completion words, 0 for none
	DescFirst     = 24 // u64, written at notify+0
	DescLast      = 32 // u64, written at notify+8 after the first
	DescSize      = 40 // u32 bytes
	DescDone      = 44 // u32 Done…
	DescReserved0 = 48 // u64: node, PDID, urgent
	DescReserved1 = 56 // u64: status, paused, generation
)

// Values of done (spec/messages.md 1; 001 tables 2.2, 3.4). DoneFailed is defined by this project.
const (
	DoneReset       uint32 = 0xffffffff // write channel at reset
	DoneInitialized uint32 = 0          // write channel: ready to start
	DoneOngoing     uint32 = 2          // write channel
	DoneCompleted   uint32 = 1          // write and read channel
	DoneFailed      uint32 = 3          // the reason is in status

	DoneReadReset   uint32 = 2 // read channel at reset
	DoneReadOngoing uint32 = 0 // read channel
)

// Values of status in reserved_1: 1..7 are the NACK code that ended the transfer (spec/messages.md 1;
// defined by this project).
const (
	StatusNone       = 0
	StatusSlaveError = uint8(CodeSlaveError)
	StatusDecode     = uint8(CodeDecode) // bad descriptor, unmapped or forbidden address
	StatusNoContext  = uint8(CodeNoContext)
	StatusCorrupt    = uint8(CodeCorrupt)
	StatusDomain     = uint8(CodeDomain)
	StatusReserved   = uint8(CodeReserved)
	StatusBufferFull = uint8(CodeBufferFull)
	StatusLimit      = 8  // retransmission limit
	StatusAborted    = 9  // by the process
	StatusGone       = 10 // domain or node gone
	StatusMemory     = 11 // the kernel does not make the memory resident
	Statuses         = 12 // number of statuses
)

// The bits of reserved_0 and reserved_1 (spec/messages.md 1; defined by this project). Unnamed
// bits are written as 0 and ignored when read.
//
//	word        field            bits
//	reserved_0  destination node [21:0]
//	reserved_0  destination PDID [47:32], 0 the same PDID on that node
//	reserved_0  abort            [61]: ends the transfer that runs here
//	reserved_0  urgent           [62]
//	reserved_1  status           [7:0]
//	reserved_1  blocks paused    [15:8]
//	reserved_1  generation       [63:32], of the destination's domain: by the process
const (
	DescNodeMask    = NodeIDMask
	DescPDIDShift   = 32
	DescAbort       = 1 << 61
	DescUrgent      = 1 << 62
	DescStatusMask  = 0xff
	DescPausedShift = 8
	DescPausedMask  = 0xff
	DescGenShift    = 32
)

// Descriptor is a channel descriptor: one transfer as a process announces it (spec/messages.md 1;
// 001 §2.3.3.2).
type Descriptor struct {
	Src, Dst    VA
	Notify      VA // 16-byte aligned; 0: no completion words
	First, Last uint64
	Size        uint32 // bytes, 1..2^32-1
	Done        uint32 // Done…
	DstNode     NodeID // 22 bits
	DstPDID     PDID   // 0: the same PDID on that node
	// DstGeneration is that of the destination's domain; a wrong one fails the transfer with
	// StatusDomain.
	DstGeneration Generation

	Abort  bool  // end the transfer on this channel
	Urgent bool  // high class
	Status uint8 // Status…
	Paused uint8 // blocks currently paused
}

// Reserved0 returns the word at DescReserved0.
func (d *Descriptor) Reserved0() uint64 {
	w := uint64(d.DstNode)&DescNodeMask | uint64(d.DstPDID)<<DescPDIDShift
	if d.Abort {
		w |= DescAbort
	}
	if d.Urgent {
		w |= DescUrgent
	}
	return w
}

// Reserved1 returns the word at DescReserved1.
func (d *Descriptor) Reserved1() uint64 {
	return uint64(d.Status) | uint64(d.Paused)<<DescPausedShift | uint64(d.DstGeneration)<<DescGenShift
}

// Words returns the descriptor as the eight u64 in btcm.
func (d *Descriptor) Words() [DescriptorWords]uint64 {
	return [DescriptorWords]uint64{
		uint64(d.Src), uint64(d.Dst), uint64(d.Notify), d.First, d.Last,
		uint64(d.Size) | uint64(d.Done)<<32,
		d.Reserved0(), d.Reserved1(),
	}
}

// StoreDescriptor stores a descriptor at offset at with the caller's 32-bit and 64-bit stores. It
// clears status and paused, and stores done = 0 last, which makes the channel ready to start.
func StoreDescriptor(at uint32, words *[DescriptorWords]uint64, store32 func(off, v uint32), store64 func(off uint32, v uint64)) {
	for i, w := range words {
		switch off := 8 * uint32(i); off {
		case DescSize: // the upper half is done
			store32(at+off, uint32(w))
		case DescReserved1:
			store64(at+off, w>>DescGenShift<<DescGenShift)
		default:
			store64(at+off, w)
		}
	}
	store32(at+DescDone, DoneInitialized)
}

// DescriptorOf decodes a descriptor from its eight u64. Every value decodes; the firmware checks
// whether the transfer is valid.
func DescriptorOf(w *[DescriptorWords]uint64) Descriptor {
	return Descriptor{
		Src: VA(w[0]), Dst: VA(w[1]), Notify: VA(w[2]),
		First: w[3], Last: w[4],
		Size: uint32(w[5]), Done: uint32(w[5] >> 32),
		DstNode: NodeID(w[6] & DescNodeMask),
		DstPDID: PDID(w[6] >> DescPDIDShift),
		Abort:   w[6]&DescAbort != 0,
		Urgent:  w[6]&DescUrgent != 0,
		Status:  uint8(w[7] & DescStatusMask),
		Paused:  uint8(w[7] >> DescPausedShift & DescPausedMask),

		DstGeneration: Generation(w[7] >> DescGenShift),
	}
}
