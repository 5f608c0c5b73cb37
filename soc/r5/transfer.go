package r5

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Reads (spec/firmware.md "Read path"; 001 §3.6): the firmware of the target
// serves a request as a write to the initiator's memory.
const (
	readChannels = device.ChannelsPerSlot - device.WriteChannels
	maxPending   = 32 // requests of a domain that wait for a channel (defined by this project)
	// maxServed is how many completed reads a domain remembers: as many as can be served and
	// waiting at a time (defined by this project). A duplicate that was sent during its read
	// arrives before that many others have ended. If the network delays it longer, it is served
	// again to no effect: its tag is no longer open.
	maxServed = readChannels + maxPending
)

// requester identifies the sender of a read request.
type requester struct {
	node  device.NodeID
	iface uint8
	epoch uint32
	tag   uint16
	// generation is that of the domain that owned the packetizer: the slot's next domain may use
	// the tag for another read.
	generation device.Generation
}

// request is a read request waiting for a channel.
type request struct {
	from requester
	m    mailbox.ReadRequest
}

func (r *request) descriptor() device.Descriptor {
	return device.Descriptor{
		Src: r.m.Src, Dst: r.m.Dst, Notify: r.m.Notify, First: r.m.First, Last: r.m.Last, Size: r.m.Size,
		DstNode: r.from.node, DstPDID: r.m.PDID, DstGeneration: r.from.generation,
	}
}

// readQueue is a domain's read channels and the requests that wait for one, in order. It is
// separate from all acknowledgements (001 §3.6.3).
type readQueue struct {
	busy    uint32    // one bit per read channel
	pending []request // like the next two of full length, or nil before the first request
	head    int
	level   int
	failed  []failure // the last failed reads, whose answers may be lost
	next    int

	served   []request // the last reads that completed
	lastDone int
}

// failure is a failed read: a repeated request gets the same answer.
type failure struct {
	request
	status uint8
}

// open makes the queue's memory.
func (q *readQueue) open() {
	if q.pending == nil {
		q.pending, q.failed, q.served = make([]request, maxPending), make([]failure, maxPending), make([]request, maxServed)
	}
}

func (q *readQueue) at(i int) *request { return &q.pending[(q.head+i)%maxPending] }

// drop removes waiting request i.
func (q *readQueue) drop(i int) {
	for ; i+1 < q.level; i++ {
		*q.at(i) = *q.at(i + 1)
	}
	q.level--
}

// Class is a transfer's priority.
type Class = device.Class

// The classes, highest priority first.
const (
	High    = device.High
	Medium  = device.Medium
	Low     = device.Low
	classes = Class(device.Classes)
)

// transfer is one channel's state, private to the firmware: what the process writes to its
// descriptor after the doorbell has no effect (spec/hardware.md 6).
type transfer struct {
	channel    int16 // of all slots' channels
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
	parked bool  // in the queue of its path
	began  int64 // time of the doorbell
	kicked int64 // stamp of the doorbell

	isRead  bool // serves a read request
	request request
}

// classNow returns the class of the remaining bytes of x.
func (x *transfer) classNow() Class {
	return device.ClassOf(x.desc.Size-x.issued, x.desc.Urgent)
}

// short reports whether the next block is short (wire.Header.Short).
func (x *transfer) short() bool { return x.block <= 1 && x.desc.Size-x.issued <= device.BlockSize }

// nextLength returns the length of the next block, 0 if only the completion words are left.
func (x *transfer) nextLength() uint32 {
	if x.issued == x.desc.Size {
		return 0
	}
	return blockLength(x.desc.Dst, x.desc.Size, x.issued)
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
