package device

import "math"

// The peek windows of pl show what other registers take away or do not show:
// the entries of the page-fault FIFOs, and what the firmware knows of its
// channels (docs/spec/peek.md; ours). They are read-only, and reading them changes
// nothing.
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

// The bits of the words of a channel (docs/spec/peek.md; ours).
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

// ChannelState is what the firmware knows of a channel's last transfer. A channel
// that had none since the reset is all zero.
type ChannelState struct {
	PDID, DstPDID PDID       // of the slot when the transfer began, of the destination
	Generation    Generation // of the slot's domain when it began
	Live          bool       // it goes on
	Failing       bool       // it ends as soon as nothing of it is being sent

	Blocks, Acked    uint32 // 19 bits: blocks in all, of these acknowledged
	InFlight, Paused int    // 11 bits: blocks issued and not acknowledged, of these waiting for a RAPF or the guard
	Issued           uint32 // bytes
	Retransmitted    uint32 // blocks sent again, counted modulo 2^32

	// What follows is 0 once the transfer is over.
	Window         int      // 11 bits: blocks that may be in flight
	Class          uint8    // of what is left: 0 high, 1 medium, 2 low
	Oldest, Newest Sequence // of the blocks in flight that were issued first and last; 0 without one
	AgeNS          int64    // from its beginning to the node's last event, ns
}

// Words gives the five registers of the channel. What exceeds its field shows as
// the most that the field holds.
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

// DecodeChannelState reads a channel from its five registers. Every value is
// possible; undefined bits are ignored.
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

// PeekEntry gives the offset in pl of entry i of RXFIFO, or of TXFIFO.
func PeekEntry(source bool, i int) uint32 {
	base := uint32(PLPeekRXFIFO)
	if source {
		base = PLPeekTXFIFO
	}
	return base + PeekEntryStride*uint32(i)
}

// PeekChannel gives the offset in pl of a channel's first register.
func PeekChannel(slot, ch int) uint32 {
	return PLPeekChannels + PeekChannelStride*uint32(ChannelsPerSlot*slot+ch)
}
