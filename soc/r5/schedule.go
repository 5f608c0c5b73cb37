package r5

import (
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/sparse"
	"github.com/exanet/pfd/soc/wire"
)

// window returns the number of blocks of x that may be in flight. A transfer of at most one
// block's size may have both parts in flight if the destination is misaligned, whatever
// OUTSTANDING says.
func (fw *Firmware) window(x *transfer) int {
	if x.desc.Size <= device.BlockSize && fw.outstanding < 2 {
		return 2
	}
	return fw.outstanding
}

// wantsIssue reports whether x has a block that may be issued now.
func (fw *Firmware) wantsIssue(x *transfer) bool {
	if !x.live || x.failing || x.parked || x.inflight >= fw.window(x) {
		return false
	}
	// The last IDs of a domain are kept for channels that have none (defined by this project): a
	// peer's reads must not hold the IDs that other channels need.
	if x.inflight > 0 && fw.domains[x.slot].ids >= maxDomainIDs-device.ChannelsPerSlot {
		return false
	}
	if x.issued < x.desc.Size {
		return true
	}
	return x.desc.Notify != 0 && !x.wordsOut && x.acked == x.blocks
}

// enqueue schedules a channel if it has something to issue: in the class of its remaining size,
// or at once if that is the high class and its queues are empty (scheduler bypass).
func (fw *Firmware) enqueue(x *transfer) {
	for !x.queued && fw.wantsIssue(x) && !fw.mustWait(x) {
		x.class = x.classNow()
		if x.class != High || fw.cfg.Options.NoBypass || fw.run.waiting[High] != 0 || !fw.mayTake(int(x.slot)) || fw.due() {
			fw.push(x)
			return
		}
		fw.passedOver(High)
		fw.issue(x)
	}
}

// push adds a channel at the rear of its queue.
func (fw *Firmware) push(x *transfer) {
	q := &fw.run.queues[x.class][x.slot]
	q.push(fw.run.links[:], x.channel)
	x.queued = true
	fw.run.waiting[x.class] |= 1 << x.slot
}

// unqueue removes a channel from its queue, O(1).
func (fw *Firmware) unqueue(x *transfer) {
	if x.parked {
		fw.paths[x.desc.DstNode].waiting.remove(fw.run.links[:], x.channel)
		x.parked = false
	}
	if !x.queued {
		return
	}
	q := &fw.run.queues[x.class][x.slot]
	q.remove(fw.run.links[:], x.channel)
	if q.head < 0 {
		fw.run.waiting[x.class] &^= 1 << x.slot
	}
	x.queued = false
}

// ready returns the slots that could issue in class c now.
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

// due reports whether a class below the high one has been passed over so often that it may issue.
func (fw *Firmware) due() bool {
	return fw.run.passed[Low] >= passes && fw.ready(Low) != 0 || fw.run.passed[Medium] >= passes && fw.ready(Medium) != 0
}

// pick returns the next class and slot: strict priority, except for a class's guaranteed share.
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
	// The slot after the one that issued last.
	after := slots &^ (1<<uint(fw.run.last[chosen]+1) - 1)
	if after == 0 {
		after = slots
	}
	slot := bits.TrailingZeros16(after)
	fw.run.last[chosen] = slot
	return chosen, slot, true
}

// passedOver records that class c issues while lower classes could have.
func (fw *Firmware) passedOver(c Class) {
	fw.run.passed[c] = 0
	for below := c + 1; below < classes; below++ {
		if fw.ready(below) != 0 {
			fw.run.passed[below]++
		}
	}
}

// Schedule issues all blocks that may be issued, one at a time: a transfer with blocks left goes
// to the rear of the class of its remaining size.
func (fw *Firmware) Schedule() {
	if fw.cfg.Options.NoCounters {
		fw.lookThrough()
	}
	for fw.run.waiting[High]|fw.run.waiting[Medium]|fw.run.waiting[Low] != 0 {
		class, slot, ok := fw.pick()
		if !ok {
			return
		}
		x := fw.channels.At(int(fw.run.queues[class][slot].head))
		fw.unqueue(x)
		if !fw.wantsIssue(x) {
			continue // its window has shrunk in the meantime
		}
		if fw.mustWait(x) {
			continue
		}
		fw.passedOver(class)
		fw.issue(x)
		fw.enqueueRear(x)
	}
}

// enqueueRear is enqueue without the bypass, so that the other transfers of the class are served
// before this one again.
func (fw *Firmware) enqueueRear(x *transfer) {
	if !x.queued && fw.wantsIssue(x) {
		x.class = x.classNow()
		fw.push(x)
	}
}

// lookThrough scans every channel of every page: this is the cost that the counters avoid.
func (fw *Firmware) lookThrough() {
	var waiting [classes]uint16
	for _, x := range fw.channels.All() {
		if x.queued {
			waiting[x.class] |= 1 << x.slot
		}
	}
	fw.run.waiting = waiting
}

// mayTake reports whether a domain may take one more ID without taking one that is reserved for
// another.
func (fw *Firmware) mayTake(slot int) bool {
	bit := uint16(1) << uint(slot)
	return fw.free.count > 0 && fw.run.room&bit != 0 && (fw.run.below&bit != 0 || fw.free.count > fw.reserve)
}

// takeID takes a free ID for a domain from the front of the ticket queue.
func (fw *Firmware) takeID(slot uint8) int16 {
	var id int16
	if fw.cfg.Options.NoTickets {
		for fw.tx.At(int(id)).state != stateFree {
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

// giveID returns an ID to the rear of the ticket queue.
func (fw *Firmware) giveID(slot uint8, t *transaction) {
	d := &fw.domains[slot]
	d.ids--
	if d.ids < keptIDs {
		fw.reserve++
	}
	fw.shares(slot)
	t.state = stateFree
	if fw.cfg.Options.NoTickets {
		fw.free.count++
	} else {
		fw.free.put(t.id)
	}
}

// shares updates the bitmaps of a slot.
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

func (fw *Firmware) issue(x *transfer) {
	id := fw.takeID(x.slot)
	t := fw.tx.At(int(id))
	*t = transaction{id: id, transfer: x, state: stateIssued, short: x.short(), bulk: x.class != High, node: x.desc.DstNode, peer: x.first, began: fw.now}
	x.first = id
	x.inflight++
	if x.issued < x.desc.Size {
		n := x.nextLength()
		t.block, t.offset, t.length = x.block, x.issued, uint16(n)
		x.issued += n
		x.block++
		// The words go with the last block if every other block is acknowledged. 001 §3.2.6 sends
		// them at the penultimate acknowledgement, when the last block may still be paused: the
		// target would then see the words before the last bytes, for as long as a page fault
		// lasts. Our order costs a transfer of two to four blocks the wire time of one block.
		t.words = x.desc.Notify != 0 && x.issued == x.desc.Size && x.acked == x.blocks-1
	} else {
		t.block, t.offset, t.words = x.blocks, x.desc.Size, true
	}
	x.wordsOut = x.wordsOut || t.words
	t.seq = fw.nextSequence(t.node, id)
	t.first = t.seq
	if fw.cfg.PathFeedback {
		fw.depart(t)
	}
	fw.transmit(t)
}

// depart counts a block that is issued, for the rate of its path.
func (fw *Firmware) depart(t *transaction) {
	p := fw.pathTo(t.node)
	if p.window == 0 {
		p.window, p.least = device.BlockSize, new([15]int64)
	}
	p.flying += int64(t.length)
}

// mustWait reports whether the path of a transfer that is not queued is shut. The transfer then waits for it.
func (fw *Firmware) mustWait(x *transfer) bool {
	p := fw.path(x.desc.DstNode)
	if p == nil || p.open(fw.now, x.nextLength(), x.short()) {
		return false
	}
	p.waiting.push(fw.run.links[:], x.channel)
	x.parked = true
	if p.next > fw.now && !p.paced {
		p.paced = true
		fw.paced = append(fw.paced, p)
	}
	return true
}

// maxJump limits how far a sequence number jumps (defined by this project): a receiver that has
// missed some must still take the number for a newer one.
const maxJump = 4096

// nextSequence returns the next sequence number of an ID towards a node. It is newer than the
// last one towards that node. Unless the jump would be too large, it is drawn from one counter
// that the ID has for all nodes: a retransmission request from the own node (a source fault) does
// not say which destination the ID had, and a late request must not match a later use.
//
// A block whose source cannot be read consumes numbers and sends nothing. After half the number
// space the next number would look old to the receiver, which would drop the ID's blocks for
// ever. So numbers that were not sent are reused after maxJump, and numbers that were not
// answered after half the space (defined by this project).
func (fw *Firmware) nextSequence(node device.NodeID, id int16) device.Sequence {
	all := fw.seq[node]
	if all == nil {
		all = new(sparse.Table[numbers])
		fw.seq[node] = all
	}
	n := all.At(int(id))
	near := func(s device.Sequence) bool {
		return (s-n.sent-1)&device.SequenceMask < maxJump && s.Newer(n.known)
	}
	next := n.last.Next()
	if !near(next) {
		next = n.sent.Next()
	}
	if !next.Newer(n.known) {
		next = n.known.Next()
	}
	if drawn := fw.drawn[id].Next(); (drawn-next)&device.SequenceMask < maxJump && near(drawn) {
		next = drawn
		fw.drawn[id] = drawn
	}
	n.last = next
	return next
}

// transmit makes the PLDMA send block id as its transaction describes.
func (fw *Firmware) transmit(t *transaction) {
	x := t.transfer
	t.sending++
	if t.bulk {
		fw.domains[x.slot].sending++
		fw.shares(x.slot)
	}
	if fw.cfg.Options.NoRetransmissionBit {
		// The hardware does not report when it has sent it: the time-out runs from here.
		fw.await(t, fw.now)
	}
	fw.counts[device.TXBlocks]++
	b := wire.Block{
		Header: wire.Header{
			Kind: wire.Data, SrcNode: fw.cfg.Node, SrcPDID: x.pdid, DstNode: t.node, DstPDID: x.dst,
			SrcGeneration: x.generation, DstGeneration: x.desc.DstGeneration,
			ID: device.TransactionID(t.id), Seq: t.seq, First: t.first, Block: t.block, Length: t.length,
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

// sent records that the PLDMA has finished one sending of a block.
func (fw *Firmware) sent(t *transaction) {
	t.sending--
	if t.bulk {
		slot := t.transfer.slot
		fw.domains[slot].sending--
		fw.shares(slot)
	}
}
