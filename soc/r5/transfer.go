package r5

import "github.com/exanet/pfd/device"

// transfer is one channel's state, which the firmware keeps to itself: what the
// process writes into its descriptor after the doorbell changes nothing
// (spec/hardware.md 6).
type transfer struct {
	live       bool
	failing    bool  // ends as soon as nothing of it is being sent
	status     uint8 // why
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

	first  int16 // its transactions, -1 none
	queued bool  // in a queue of the scheduler
	class  Class // of that queue
	began  int64 // when it was announced
	kicked int64 // the stamp of that

	isRead  bool // serves a read request
	request request
}

// blockLength gives the length of the block that starts offset bytes into a
// transfer: blocks end at the 16 KiB boundaries of the destination, so the first
// is 16 KiB - (dst mod 16 KiB) or less (spec/firmware.md "Segmentation"; 001
// §3.2.2).
func blockLength(dst device.VA, size, offset uint32) uint32 {
	at := (uint64(dst) + uint64(offset)) % device.BlockSize
	n := uint32(device.BlockSize - at)
	if left := size - offset; n > left {
		n = left
	}
	return n
}

// blockCount gives the number of blocks of a transfer, at most 262,145.
func blockCount(dst device.VA, size uint32) uint32 {
	head := uint64(dst) % device.BlockSize
	return uint32((head + uint64(size) + device.BlockSize - 1) / device.BlockSize)
}
