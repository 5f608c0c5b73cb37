package r5

import "github.com/exanet/pfd/device"

// transfer is one channel's state, private to the firmware: what the process writes to its
// descriptor after the doorbell has no effect (spec/hardware.md 6).
type transfer struct {
	live       bool
	failing    bool  // ends as soon as none of its blocks is being sent
	status     uint8 // the reason
	slot       uint8
	pdid       device.PDID       // of the initiator
	generation device.Generation // the same
	dst        device.PDID       // of the target
	desc       device.Descriptor

	issued   uint32 // bytes
	block    uint32 // next block's number
	blocks   uint32 // in all
	acked    uint32 // blocks acknowledged
	inflight int
	paused   int
	resent   uint32 // blocks retransmitted
	wordsOut bool   // the completion words are issued
	wordsIn  bool   // and acknowledged

	first  int16 // its transactions, -1 for none
	queued bool  // in a queue of the scheduler
	class  Class // of that queue
	began  int64 // time of the doorbell
	kicked int64 // stamp of the doorbell

	isRead  bool // serves a read request
	request request
}

// blockLength returns the length of the block that starts offset bytes into a transfer. Blocks
// end at the destination's 16 KiB boundaries, so the first has at most 16 KiB - (dst mod 16 KiB)
// (spec/firmware.md "Segmentation"; 001 §3.2.2).
func blockLength(dst device.VA, size, offset uint32) uint32 {
	at := (uint64(dst) + uint64(offset)) % device.BlockSize
	n := uint32(device.BlockSize - at)
	if left := size - offset; n > left {
		n = left
	}
	return n
}

// blockCount returns the number of blocks of a transfer, at most 262,145.
func blockCount(dst device.VA, size uint32) uint32 {
	head := uint64(dst) % device.BlockSize
	return uint32((head + uint64(size) + device.BlockSize - 1) / device.BlockSize)
}
