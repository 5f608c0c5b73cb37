package r5

import "github.com/exanet/pfd/device"

// transfer is one channel's state, which the firmware keeps to itself: what the
// process writes into its descriptor after the doorbell changes nothing
// (spec/hardware.md 6).
type transfer struct {
	live    bool
	failing bool  // ends as soon as nothing of it is being sent
	status  uint8 // why
	slot    uint8
	pdid    device.PDID // of the initiator
	dst     device.PDID // of the target
	desc    device.Descriptor

	issued   uint32 // bytes
	block    uint32 // next block's number
	blocks   uint32 // in all
	acked    uint32 // blocks acknowledged
	inflight int
	paused   int
	wordsOut bool // the completion words are issued
	wordsIn  bool // and acknowledged

	first   int16 // its transactions, -1 none
	queued  bool  // in the run queue
	nextRun int16
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

// window gives how many blocks of x may be in flight: a transfer of one block's
// size may have both parts out where the destination is misaligned, whatever
// OUTSTANDING says.
func (fw *Firmware) window(x *transfer) int {
	if x.desc.Size <= device.BlockSize && fw.outstanding < 2 {
		return 2
	}
	return fw.outstanding
}

// wantsIssue tells whether x has something that may go out now.
func (fw *Firmware) wantsIssue(x *transfer) bool {
	if !x.live || x.failing || x.inflight >= fw.window(x) {
		return false
	}
	if x.issued < x.desc.Size {
		return true
	}
	return x.desc.Notify != 0 && !x.wordsOut && x.acked == x.blocks
}

func (fw *Firmware) enqueue(c int16) {
	x := &fw.channels[c]
	if x.queued || !fw.wantsIssue(x) {
		return
	}
	x.queued, x.nextRun = true, -1
	if fw.runTail >= 0 {
		fw.channels[fw.runTail].nextRun = c
	} else {
		fw.runHead = c
	}
	fw.runTail = c
	fw.runLen++
}

func (fw *Firmware) dequeue() int16 {
	c := fw.runHead
	x := &fw.channels[c]
	fw.runHead = x.nextRun
	if fw.runHead < 0 {
		fw.runTail = -1
	}
	x.queued = false
	fw.runLen--
	return c
}
