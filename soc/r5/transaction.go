package r5

import "github.com/exanet/pfd/device"

// state of a transaction (001 table 3.1; spec/firmware.md). There is no ACKED state: the ID of an
// acknowledged block is free at once, and its transfer counts the block.
type state uint8

const (
	stateFree          state = iota
	stateIssued              // sent or about to be sent, waiting for its acknowledgement
	stateRetransmitted       // the same, but not for the first time
	stateNacked              // refused because the receiver lacks a resource: in back-off
	statePaused              // a page fault at either end: waiting for a RAPF or the guard (defined by this project)
)

// Refusal describes one refusal of a block for a page fault, or one request to retransmit it. It
// is reported when its outcome is known: the block is acknowledged, refused again, or ended.
type Refusal struct {
	Slot, Channel uint8
	Transaction   device.TransactionID
	Sequence      device.Sequence // of the sending that was refused
	First         bool            // the block's first
	Final         bool            // the block has ended
	Status        uint8           // of an ended block: the transfer's status, 0 if acknowledged
	Again         int             // retransmissions of the block so far
	Kicked, Sent  int64           // stamps of the doorbell and of the end of the refused sending
	Obeyed        int64           // stamp of the retransmission request, 0 if there was none
}

// refusal is a transaction's record of its last refusal.
type refusal struct {
	open  bool
	first bool
	seq   device.Sequence
	sent  int64
	asked int64 // stamp of the retransmission request
}

// transaction is one block in flight: a row of the table of 1024 transactions.
type transaction struct {
	state   state
	sending int8 // sendings of it in progress at the PLDMA: 001's retransmission bit
	sent    bool // it was sent, perhaps under an earlier sequence number
	again   bool // retransmit as soon as the current sending ends
	words   bool // carries the completion words
	bulk    bool // was issued in the medium or low class
	// atSource: it is paused because of a fault at its source.
	atSource bool
	short    bool // as wire.Header.Short
	timed    bool // left is the beginning of a round trip

	seq, first device.Sequence // first: the first number under which it may have been sent
	node       device.NodeID
	id         int16
	transfer   *transfer
	block      uint32 // number in the transfer; the number of blocks for a words-only block
	offset     uint32 // of its first byte within the transfer
	length     uint16

	attempts  int // retransmissions since the last ACK or RAPF
	rapfs     int
	nackRow   int // NACKs 3, 4, 7 in a row
	guardStep int
	lastCode  device.Code
	// sourceFault is when the source first faulted without a TXFIFO, 0 for never.
	sourceFault int64

	refusal refusal
	sentAt  int64 // stamp of the end of the last sending
	resent  int   // retransmissions

	began int64 // when it was issued
	left  int64 // when it had been sent for the first time after its last refusal or the last LinkUp
	last  int64 // and for the last time
	list  uint8 // its timer list, 0 for none
	since int64 // when it was added to that list
	peer  int16 // next transaction of the same transfer, -1 for none
}

// Timer lists: all members of one list wait equally long, so insertion at the tail keeps the list
// sorted, and insertion and removal are O(1) (spec/firmware.md "Time-outs").
const (
	listNone    = 0
	listTimeout = 1
	listGuard   = 2  // + step 0..4: GUARD_US times 1, 2, 4, 8, 16
	listBackoff = 7  // + step 0..6: 1, 2, 4 .. 64 ms
	listFar     = 14 // + step 0..9: the time-out of blocks to other hosts
	lists       = listFar + farSteps
	listHeld    = lists // of its path: a block that waits while the path is full, without a period

	guardSteps   = 5
	backoffSteps = 7
)

// list is a doubly linked list of IDs or of channels, -1 for none: push at the rear and removal
// anywhere are O(1). Its members' links are kept in a separate array.
type (
	list  struct{ head, tail int16 }
	links struct{ prev, next int16 }
)

func (l *list) push(all []links, i int16) {
	all[i] = links{l.tail, -1}
	if l.tail >= 0 {
		all[l.tail].next = i
	} else {
		l.head = i
	}
	l.tail = i
}

func (l *list) remove(all []links, i int16) {
	at := all[i]
	if at.prev >= 0 {
		all[at.prev].next = at.next
	} else {
		l.head = at.next
	}
	if at.next >= 0 {
		all[at.next].prev = at.prev
	} else {
		l.tail = at.prev
	}
}

// tickets is the circular queue of free transaction IDs: taken at the front, returned at the
// rear, O(1) (001 §3.3).
type tickets struct {
	ring  [device.Transactions]int16
	front int
	count int
}

func (q *tickets) take() int16 {
	id := q.ring[q.front]
	q.front = (q.front + 1) % len(q.ring)
	q.count--
	return id
}

func (q *tickets) put(id int16) {
	q.ring[(q.front+q.count)%len(q.ring)] = id
	q.count++
}
