package device

import "math"

// The peek windows of pl show state that other registers consume or hide: the entries of the
// page-fault FIFOs, and the firmware's state of its channels (docs/spec/peek.md; defined by this
// project). They are read-only, and reading has no side effects.
const (
	PeekEntryStride = 0x20 // an entry of a FIFO: PLPeekRXFIFO + PeekEntryStride*i
	PeekAB          = 0x00 // words a and b, as at the head
	PeekCD          = 0x08 // words c and d
	PeekEXT         = 0x10 // 32 bits: the entry's RXFIFO_EXT

	PeekChannelStride = 0x40 // a channel: PLPeekChannels + PeekChannelStride*(ChannelsPerSlot*slot + channel)
	PeekState         = 0x00
	PeekBlocks        = 0x08
	PeekBytes         = 0x10
	PeekSequences     = 0x18
	PeekAge           = 0x20
	PeekChannelWords  = 5
)

// The bits of the words of a channel (docs/spec/peek.md; defined by this project).
const (
	peekDstShift    = 16
	peekWindowShift = 32
	peekClassShift  = 44
	peekClassMask   = 3
	peekFailing     = 1 << 62
	peekLive        = 1 << 63

	peekBlockMask     = 1<<19 - 1 // a transfer has 262,145 blocks at most
	peekAckedShift    = 19
	peekInFlightShift = 38
	peekPausedShift   = 49
	peekFewMask       = 1<<11 - 1 // up to Transactions blocks

	peekNewestShift     = 16
	peekGenerationShift = 32
	peekHighShift       = 32

	peekStateMask     = PDIDMask | PDIDMask<<peekDstShift | peekFewMask<<peekWindowShift | peekClassMask<<peekClassShift | peekFailing | peekLive
	peekBlocksMask    = 1<<60 - 1
	peekSequencesMask = SequenceMask | SequenceMask<<peekNewestShift | low32<<peekGenerationShift
)

// ChannelState describes a channel's last transfer. It is all zero if the channel has had none
// since the reset.
type ChannelState struct {
	PDID, DstPDID PDID       // of the slot when the transfer began; of the destination
	Generation    Generation // of the slot's domain when it began
	Live          bool       // it is running
	Failing       bool       // it ends as soon as none of its blocks is being sent

	Blocks, Acked    uint32 // 19 bits: blocks in all, of these acknowledged
	InFlight, Paused int    // 11 bits: blocks issued and not acknowledged; of these, those waiting for a RAPF or the guard
	Issued           uint32 // bytes
	Retransmitted    uint32 // blocks retransmitted, modulo 2^32

	// The following fields are 0 once the transfer has ended.
	Window         int      // 11 bits: blocks that may be in flight
	Class          uint8    // of the remaining bytes: 0 high, 1 medium, 2 low
	Oldest, Newest Sequence // of the first and the last issued of the blocks in flight; 0 if there are none
	AgeNS          int64    // from its beginning to the node's last event, in ns
}

// Words returns the five registers of the channel. A value that exceeds its field is saturated.
func (s *ChannelState) Words() [PeekChannelWords]uint64 {
	few := func(n int) uint64 { return uint64(min(max(n, 0), peekFewMask)) }
	state := uint64(s.PDID) | uint64(s.DstPDID)<<peekDstShift | few(s.Window)<<peekWindowShift | uint64(min(s.Class, peekClassMask))<<peekClassShift
	if s.Failing {
		state |= peekFailing
	}
	if s.Live {
		state |= peekLive
	}
	return [PeekChannelWords]uint64{
		state,
		uint64(min(s.Blocks, peekBlockMask)) | uint64(min(s.Acked, peekBlockMask))<<peekAckedShift |
			few(s.InFlight)<<peekInFlightShift | few(s.Paused)<<peekPausedShift,
		uint64(s.Issued) | uint64(s.Retransmitted)<<peekHighShift,
		uint64(s.Oldest&SequenceMask) | uint64(s.Newest&SequenceMask)<<peekNewestShift | uint64(s.Generation)<<peekGenerationShift,
		uint64(max(s.AgeNS, 0)),
	}
}

// DecodeChannelState decodes a channel's five registers. Every value decodes; undefined bits are
// ignored.
func DecodeChannelState(w *[PeekChannelWords]uint64) ChannelState {
	return ChannelState{
		PDID: PDID(w[0]), DstPDID: PDID(w[0] >> peekDstShift), Window: int(w[0] >> peekWindowShift & peekFewMask),
		Class: uint8(w[0] >> peekClassShift & peekClassMask), Failing: w[0]&peekFailing != 0, Live: w[0]&peekLive != 0,

		Blocks: uint32(w[1] & peekBlockMask), Acked: uint32(w[1] >> peekAckedShift & peekBlockMask),
		InFlight: int(w[1] >> peekInFlightShift & peekFewMask), Paused: int(w[1] >> peekPausedShift & peekFewMask),

		Issued: uint32(w[2]), Retransmitted: uint32(w[2] >> peekHighShift),

		Oldest: Sequence(w[3] & SequenceMask), Newest: Sequence(w[3] >> peekNewestShift & SequenceMask),
		Generation: Generation(w[3] >> peekGenerationShift),

		AgeNS: int64(min(w[4], math.MaxInt64)),
	}
}

// PeekEntry returns the offset in pl of entry i of RXFIFO, or of TXFIFO.
func PeekEntry(source bool, i int) uint32 {
	base := uint32(PLPeekRXFIFO)
	if source {
		base = PLPeekTXFIFO
	}
	return base + PeekEntryStride*uint32(i)
}

// PeekChannel returns the offset in pl of a channel's first register.
func PeekChannel(slot, ch int) uint32 {
	return PLPeekChannels + PeekChannelStride*uint32(ChannelsPerSlot*slot+ch)
}
