package r5

import (
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// Class is a transfer's priority.
type Class = device.Class

// The classes, the first goes first.
const (
	High    = device.High
	Medium  = device.Medium
	Low     = device.Low
	classes = Class(device.Classes)
)

const (
	// passes is how often a class that could issue is passed over by those above
	// it before it has its turn: one issue in eight is its share (ours).
	passes = 7
	// maxSending is the number of blocks of the medium and low classes that a
	// domain may have with the PLDMA at a time (ours): as many as its accesses
	// in flight. What the PLDMA holds no priority can overtake.
	maxSending = 16
)

// scheduler has a queue for each class and slot, so that a domain that may take
// no id costs nothing and those of one class share by turns. The bitmaps have a
// bit a slot: nothing is ever looked through.
type scheduler struct {
	queues  [classes][device.Slots]list
	links   [device.Channels]links
	waiting [classes]uint16 // slots with channels queued
	last    [classes]int    // slot that had the last turn
	passed  [classes]int    // issues of classes above since the class's last one

	below uint16 // slots with fewer ids than are kept for them
	room  uint16 // slots with fewer ids than the most
	full  uint16 // slots with maxSending blocks with the PLDMA
}

func (s *scheduler) reset() {
	*s = scheduler{below: 1<<device.Slots - 1, room: 1<<device.Slots - 1}
	for c := range s.queues {
		for i := range s.queues[c] {
			s.queues[c][i] = list{-1, -1}
		}
	}
}

// class gives the class of what x has left.
func (x *transfer) classNow() Class {
	return device.ClassOf(x.desc.Size-x.issued, x.desc.Urgent)
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
	// Of the last ids of a domain each of its channels has one (ours): the reads of a
	// peer must not hold what others need.
	if x.inflight > 0 && fw.domains[x.slot].ids >= maxDomainIDs-device.ChannelsPerSlot {
		return false
	}
	if x.issued < x.desc.Size {
		return true
	}
	return x.desc.Notify != 0 && !x.wordsOut && x.acked == x.blocks
}

// enqueue has channel c scheduled if it has something to issue: in the class of
// its remaining size, or at once where that is the high class and nobody waits
// there (scheduler bypass).
func (fw *Firmware) enqueue(c int16) {
	x := &fw.channels[c]
	for !x.queued && fw.wantsIssue(x) {
		x.class = x.classNow()
		if x.class != High || fw.cfg.Options.NoBypass || fw.run.waiting[High] != 0 || !fw.mayTake(int(x.slot)) || fw.due() {
			fw.push(c)
			return
		}
		fw.passedOver(High)
		fw.issue(c)
	}
}

// push puts c at the rear of its queue.
func (fw *Firmware) push(c int16) {
	x := &fw.channels[c]
	q := &fw.run.queues[x.class][x.slot]
	q.push(fw.run.links[:], c)
	x.queued = true
	fw.run.waiting[x.class] |= 1 << x.slot
}

// unqueue takes c out of its queue, O(1).
func (fw *Firmware) unqueue(c int16) {
	x := &fw.channels[c]
	if !x.queued {
		return
	}
	q := &fw.run.queues[x.class][x.slot]
	q.remove(fw.run.links[:], c)
	if q.head < 0 {
		fw.run.waiting[x.class] &^= 1 << x.slot
	}
	x.queued = false
}

// ready gives the slots that could issue in class c now.
func (fw *Firmware) ready(c Class) uint16 {
	if fw.free.count == 0 {
		return 0
	}
	may := fw.run.room
	if fw.free.count <= fw.reserve {
		may &= fw.run.below
	}
	if c != High {
		may &^= fw.run.full
	}
	return fw.run.waiting[c] & may
}

// due tells whether a class below the high one has been passed over for its
// share.
func (fw *Firmware) due() bool {
	return fw.run.passed[Low] >= passes && fw.ready(Low) != 0 || fw.run.passed[Medium] >= passes && fw.ready(Medium) != 0
}

// pick gives the class and slot that are next: strict priority, but for a
// class's share.
func (fw *Firmware) pick() (Class, int, bool) {
	chosen, slots := classes, uint16(0)
	for c := High; c < classes; c++ {
		r := fw.ready(c)
		if r != 0 && (chosen == classes || fw.run.passed[c] >= passes) {
			chosen, slots = c, r
		}
	}
	if chosen == classes {
		return 0, 0, false
	}
	// The slot after the one that had the last turn.
	after := slots &^ (1<<uint(fw.run.last[chosen]+1) - 1)
	if after == 0 {
		after = slots
	}
	slot := bits.TrailingZeros16(after)
	fw.run.last[chosen] = slot
	return chosen, slot, true
}

// passedOver counts that class c issues while those below it could have.
func (fw *Firmware) passedOver(c Class) {
	fw.run.passed[c] = 0
	for below := c + 1; below < classes; below++ {
		if fw.ready(below) != 0 {
			fw.run.passed[below]++
		}
	}
}

// Schedule issues what may be issued, a block at a time: a transfer with blocks
// left goes to the rear of the class of its remaining size.
func (fw *Firmware) Schedule() {
	if fw.cfg.Options.NoCounters {
		fw.lookThrough()
	}
	for fw.run.waiting[High]|fw.run.waiting[Medium]|fw.run.waiting[Low] != 0 {
		class, slot, ok := fw.pick()
		if !ok {
			return
		}
		c := fw.run.queues[class][slot].head
		fw.unqueue(c)
		if !fw.wantsIssue(&fw.channels[c]) {
			continue // its window has shrunk meanwhile
		}
		fw.passedOver(class)
		fw.issue(c)
		fw.enqueueRear(c)
	}
}

// enqueueRear is enqueue without the bypass: after its turn a transfer lets the
// others of its class have theirs.
func (fw *Firmware) enqueueRear(c int16) {
	x := &fw.channels[c]
	if !x.queued && fw.wantsIssue(x) {
		x.class = x.classNow()
		fw.push(c)
	}
}

// lookThrough is what the counters spare: a look at every channel of every page.
func (fw *Firmware) lookThrough() {
	var waiting [classes]uint16
	for c := range fw.channels {
		if x := &fw.channels[c]; x.queued {
			waiting[x.class] |= 1 << x.slot
		}
	}
	fw.run.waiting = waiting
}

// mayTake tells whether a domain may take one more id: its own share is kept
// for it, and nobody takes what is kept for the others.
func (fw *Firmware) mayTake(slot int) bool {
	bit := uint16(1) << uint(slot)
	return fw.free.count > 0 && fw.run.room&bit != 0 && (fw.run.below&bit != 0 || fw.free.count > fw.reserve)
}

// takeID takes a free id for a domain, from the front of the ticket queue.
func (fw *Firmware) takeID(slot uint8) int16 {
	var id int16
	if fw.cfg.Options.NoTickets {
		for fw.tx[id].state != stateFree {
			id++
		}
		fw.free.count--
	} else {
		id = fw.free.take()
	}
	d := &fw.domains[slot]
	if d.ids < keptIDs {
		fw.reserve--
	}
	d.ids++
	fw.shares(slot)
	return id
}

// giveID returns an id to the rear of the ticket queue.
func (fw *Firmware) giveID(slot uint8, id int16) {
	d := &fw.domains[slot]
	d.ids--
	if d.ids < keptIDs {
		fw.reserve++
	}
	fw.shares(slot)
	fw.tx[id].state = stateFree
	if fw.cfg.Options.NoTickets {
		fw.free.count++
	} else {
		fw.free.put(id)
	}
}

// shares brings the bitmaps of a slot up to date.
func (fw *Firmware) shares(slot uint8) {
	d, bit := &fw.domains[slot], uint16(1)<<slot
	set := func(m *uint16, on bool) {
		*m &^= bit
		if on {
			*m |= bit
		}
	}
	set(&fw.run.below, d.ids < keptIDs)
	set(&fw.run.room, d.ids < maxDomainIDs)
	set(&fw.run.full, d.sending >= maxSending)
}

func (fw *Firmware) issue(c int16) {
	x := &fw.channels[c]
	id := fw.takeID(x.slot)
	t := &fw.tx[id]
	*t = transaction{state: stateIssued, bulk: x.class != High, transfer: int32(c), node: x.desc.DstNode, peer: x.first, began: fw.now}
	x.first = id
	x.inflight++
	if x.issued < x.desc.Size {
		n := blockLength(x.desc.Dst, x.desc.Size, x.issued)
		t.block, t.offset, t.length = x.block, x.issued, uint16(n)
		x.issued += n
		x.block++
		// The words go with the last block where every other is acknowledged. 001
		// §3.2.6 sends them at the penultimate acknowledgement, when the last block may
		// still be paused: its target would see words over bytes that are missing, be
		// it for a page fault's time. Ours costs a transfer of two to four blocks the
		// wire time of one.
		t.words = x.desc.Notify != 0 && x.issued == x.desc.Size && x.acked == x.blocks-1
	} else {
		t.block, t.offset, t.words = x.blocks, x.desc.Size, true
	}
	x.wordsOut = x.wordsOut || t.words
	t.seq = fw.nextSequence(t.node, id)
	t.first = t.seq
	fw.transmit(id)
}

// numbers are the sequence numbers of all ids towards one node: the last one
// given, the last one that was sent, and the last one that the node answered.
type numbers struct {
	last, sent, known [device.Transactions]device.Sequence
}

// answered takes a number that the node has answered. It may be an old one, of a block
// that has ended meanwhile: the node has received it all the same.
func (n *numbers) answered(id int16, s device.Sequence) {
	if s.Newer(n.known[id]) && !s.Newer(n.sent[id]) {
		n.known[id] = s
	}
}

// maxJump bounds how far a sequence number jumps (ours): a receiver that has
// missed some must still take it for a newer one.
const maxJump = 4096

// nextSequence gives the next sequence number of an id towards a node. It is
// newer than the last one there; and as long as that does not make it jump too
// far, it is drawn from one count of the id for all nodes: a retransmission
// request of the own node (a source fault) does not say which destination the
// id had, and a late one must not fit a later use.
//
// A block whose source cannot be read takes numbers and sends nothing. After
// half a circle of those the next one would be an old one to the receiver, and
// the blocks of this id would be dropped for ever: so what was not sent is given
// again after maxJump, and what nobody answers after half a circle (ours).
func (fw *Firmware) nextSequence(node device.NodeID, id int16) device.Sequence {
	n := fw.seq[node]
	if n == nil {
		n = new(numbers)
		fw.seq[node] = n
	}
	near := func(s device.Sequence) bool {
		return (s-n.sent[id]-1)&device.SequenceMask < maxJump && s.Newer(n.known[id])
	}
	next := n.last[id].Next()
	if !near(next) {
		next = n.sent[id].Next()
	}
	if !next.Newer(n.known[id]) {
		next = n.known[id].Next()
	}
	if drawn := fw.drawn[id].Next(); (drawn-next)&device.SequenceMask < maxJump && near(drawn) {
		next = drawn
		fw.drawn[id] = drawn
	}
	n.last[id] = next
	return next
}

// transmit has the PLDMA send block id as its transaction says.
func (fw *Firmware) transmit(id int16) {
	t := &fw.tx[id]
	x := &fw.channels[t.transfer]
	t.sending++
	if t.bulk {
		fw.domains[x.slot].sending++
		fw.shares(x.slot)
	}
	if fw.cfg.Options.NoRetransmissionBit {
		// Nothing tells when the hardware has sent it: the time-out runs from here.
		fw.enlist(id, listTimeout, fw.now)
	}
	fw.counts[device.TXBlocks]++
	b := wire.Block{
		Header: wire.Header{
			Kind: wire.Data, SrcNode: fw.cfg.Node, SrcPDID: x.pdid, DstNode: t.node, DstPDID: x.dst,
			SrcGeneration: x.generation, DstGeneration: x.desc.DstGeneration,
			ID: device.TransactionID(id), Seq: t.seq, First: t.first, Block: t.block, Length: t.length,
			VA:        x.desc.Dst + device.VA(t.offset),
			Remaining: x.desc.Size - t.offset,
			Last:      t.block+1 >= x.blocks,
			Read:      x.isRead,
		},
		Slot: x.slot, Source: x.desc.Src + device.VA(t.offset), HasWords: t.words, Urgent: x.desc.Urgent,
	}
	if t.words {
		b.Completion = wire.Completion{VA: x.desc.Notify, First: x.desc.First, Last: x.desc.Last}
		if t.length == 0 {
			b.VA = x.desc.Notify
		}
	}
	fw.out = append(fw.out, Command{Kind: Send, Block: b})
}

// sent counts that the PLDMA has done with one sending of a block.
func (fw *Firmware) sent(t *transaction) {
	t.sending--
	if t.bulk {
		slot := fw.channels[t.transfer].slot
		fw.domains[slot].sending--
		fw.shares(slot)
	}
}
