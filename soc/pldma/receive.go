package pldma

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// maxDomainContexts is the number of receive contexts that one source domain may hold, so that
// its paused blocks cannot starve others (spec/firmware.md; defined by this project).
const maxDomainContexts = 32

// keptContexts is how many of a source domain's contexts are reserved for short transfers, as is
// an eighth of all contexts (defined by this project): otherwise a process's large transfers
// would cause its short ones to be refused.
const keptContexts = 4

// keptOfSlot is how many contexts are reserved for blocks to each slot (defined by this project):
// a slot's blocks must not be refused because other slots' memory does not answer.
const keptOfSlot = 4

// kept returns keptOfSlot scaled to the number of contexts.
func (e *Engine) kept() int { return e.cfg.Contexts * keptOfSlot / device.Contexts }

// contextsFor reports whether a context is available for a block to a slot. If none is free, it
// ends one that only remained to report more absent pages of a refused block.
func (e *Engine) contextsFor(slot int, f *wire.Frame) bool {
	r := &e.recv
	all, own := e.cfg.Contexts, maxDomainContexts
	if !f.Short() {
		all -= all / 8
		own -= keptContexts
	}
	room := func() bool {
		if r.byDomain[f.SrcPDID] >= own {
			return false
		}
		return r.open+r.reserve < all || r.bySlot[slot] < e.kept() && r.open < e.cfg.Contexts
	}
	if room() {
		return true
	}
	full := r.byDomain[f.SrcPDID] >= own
	for c := r.head; c != nil; c = c.next {
		if c.nacked && c.writing == 0 && (!full || c.header.SrcPDID == f.SrcPDID) {
			e.abandon(c)
			return room()
		}
	}
	return false
}

// count adds by, 1 or -1, to the counts of a context's source domain and slot.
func (e *Engine) count(c *context, by int) {
	r := &e.recv
	r.open += by
	kept := func() int { return max(0, e.kept()-r.bySlot[c.slot]) }
	r.reserve -= kept()
	r.bySlot[c.slot] += by
	r.reserve += kept()
	if r.byDomain[c.header.SrcPDID] += by; r.byDomain[c.header.SrcPDID] == 0 {
		delete(r.byDomain, c.header.SrcPDID)
	}
}

// maxSources limits the nodes whose sequence numbers are remembered; blocks from further nodes
// are refused with code 3 (defined by this project).
const maxSources = 4096

// record is the receiver's memory of one (source node, transaction ID), even without an open
// context.
type record struct {
	known    bool
	answered bool // newest has been answered
	acked    bool // this use of the id was acknowledged
	newest   device.Sequence
	first    device.Sequence // first sequence number of the current use
	ctx      *context
}

// source is the receiver's state for one node. Sequence numbers restart with each life of a node,
// and packets of a former life may still arrive. Epochs are random and have no order, so the
// receiver identifies the current life by a link number: it assigns the number to a life, and
// only a node alive at that time can learn it (defined by this project). Packets of a former life
// never carry the number offered last, and neither end needs a clock. Each link has its own
// number: a node that lies or is absent affects no other.
type source struct {
	epoch, link        uint32 // of the current life; link 0: none yet
	nextEpoch, offered uint32 // of the life that may be the next
	records            [device.Transactions]record
}

// context is a block being received: key (source node, transaction id).
type context struct {
	rec        *record
	header     wire.Header
	slot       uint8
	dead       bool // ended: its remaining accesses move nothing more and are not counted
	nacked     bool
	got, want  uint64 // data packets
	writing    int    // accesses in flight
	haveWords  bool
	wordsOut   bool
	wordsIn    bool
	draining   bool // the words wait for late blocks of former reads to be written
	hasWords   bool
	completion wire.Completion
	began      int64 // first packet, ns
	touched    int64 // last packet, ns
	prev, next *context
}

type receiver struct {
	now      int64 // time of the frame being received
	timeout  int64 // ns; a context ends after twice that without a packet
	sources  map[device.NodeID]*source
	byDomain map[device.PDID]int // contexts that a source domain holds
	bySlot   [device.Slots]int   // contexts to a slot
	reserve  int                 // contexts reserved for slots and not taken by them
	open     int
	draining int
	head     *context // least recently touched
	tail     *context
	free     *context
	ending   []*context // dead, with a write in flight
}

func (e *Engine) initReceiver() {
	r := &e.recv
	timeout := r.timeout
	if timeout == 0 {
		timeout = device.TimeoutReset * 1000
	}
	*r = receiver{timeout: timeout, sources: make(map[device.NodeID]*source), byDomain: make(map[device.PDID]int), reserve: e.kept() * device.Slots}
}

// SetTimeout follows TIMEOUT_US.
func (e *Engine) SetTimeout(us uint32) { e.recv.timeout = max(int64(us), 1) * 1000 }

// PeerEpoch returns the last epoch received from a node, 0 if none: messages to the node carry it
// back (messages.md 5).
func (e *Engine) PeerEpoch(n device.NodeID) uint32 {
	if s := e.recv.sources[n]; s != nil && s.link != 0 {
		return s.epoch
	}
	return 0
}

// Receive handles a Data or Words frame from the link and takes ownership of it.
func (e *Engine) Receive(now int64, f *wire.Frame) {
	e.recv.now = now
	if e.accept(now, f) {
		return
	}
	e.cfg.Pool.Put(f)
}

// accept returns false if the frame is not in use any more.
func (e *Engine) accept(now int64, f *wire.Frame) bool {
	e.cfg.Counts[device.RXPackets] += uint64(bits.OnesCount64(f.Present))
	if f.HasWords && !f.WordsMissing {
		e.cfg.Counts[device.RXPackets]++
	}
	if f.ID >= device.Transactions || int(f.Length) != len(f.Payload) || f.Length > device.BlockSize {
		e.cfg.Counts[device.PktStale]++
		return false
	}
	s := e.sourceOf(f)
	if s == nil {
		return false
	}
	r := &s.records[f.ID]
	if r.known && r.newest.Newer(f.Seq) {
		e.cfg.Counts[device.PktStale]++
		return false
	}
	if !r.known || f.Seq != r.newest {
		if !e.advance(r, f) {
			return false
		}
	}
	c := r.ctx
	if c == nil || c.header.Seq != f.Seq {
		// A context of an older number is one whose write was in flight when this number was
		// refused.
		if r.answered {
			e.cfg.Counts[device.PktStale]++
			return false
		}
		if c = e.openContext(r, f); c == nil {
			return false
		}
	} else if h := &c.header; h.VA != f.VA || h.Length != f.Length || h.DstPDID != f.DstPDID || h.SrcPDID != f.SrcPDID ||
		h.DstGeneration != f.DstGeneration || h.SrcGeneration != f.SrcGeneration {
		// Not a packet of the block that first had this sequence number.
		e.cfg.Counts[device.PktStale]++
		return false
	}
	e.touch(c, now)
	e.cfg.Counts[device.CRCPayload] += uint64(bits.OnesCount64(f.Corrupt))
	if f.Corrupt&^c.got != 0 { // a duplicate of a packet that has arrived may be corrupt
		e.nack(c, device.CodeCorrupt)
		return false
	}
	if f.Read {
		if open, later := e.readOpen(c.slot, f); !open {
			if !later {
				// Its read has ended: the application may use the buffer.
				e.nack(c, device.CodeDomain)
			}
			return false
		}
	}
	if f.HasWords && !f.WordsMissing && !c.haveWords {
		c.haveWords, c.completion = true, f.Completion
	}
	if *e.slots[c.slot].waits(f.Short()) >= maxWaiting && f.Present&^c.got != 0 {
		e.nack(c, e.want(int(c.slot), device.CodeBufferFull))
		if c.writing == 0 {
			e.abandon(c)
		}
		return false
	}
	held := e.write(c, f, f.Present&^c.got)
	e.advanceBlock(c)
	return held
}

// sourceOf returns the state of the frame's source, or nil if the frame does not carry its link's
// number. If such a frame may be of the source's current or next life, the source is sent the
// number.
func (e *Engine) sourceOf(f *wire.Frame) *source {
	s := e.recv.sources[f.SrcNode]
	if s == nil {
		if len(e.recv.sources) >= maxSources {
			e.answer(&f.Header, device.CodeNoContext)
			return nil
		}
		s = new(source)
		e.recv.sources[f.SrcNode] = s
	}
	switch {
	case s.link != 0 && f.Epoch == s.epoch:
		if f.Link == s.link {
			return s
		}
		e.offer(f, s.link)
	case s.offered != 0 && f.Epoch == s.nextEpoch && f.Link == s.offered:
		return e.newLife(s, f)
	default:
		if s.offered == 0 || f.Epoch != s.nextEpoch {
			if e.number++; e.number == 0 {
				e.number++
			}
			s.nextEpoch, s.offered = f.Epoch, e.number
		}
		e.offer(f, s.offered)
	}
	return nil
}

// offer sends a frame's source the number of the link.
func (e *Engine) offer(f *wire.Frame, number uint32) {
	o := e.cfg.Pool.Frame()
	o.Header = wire.Header{
		Kind: wire.Link, Epoch: f.Epoch, Link: number, SrcNode: e.cfg.Node, DstNode: f.SrcNode, ID: f.ID, Seq: f.Seq,
	}
	e.cfg.Counts[device.TXPackets]++
	e.sink.Transmit(o)
}

// newLife forgets a source's former life: its contexts end, and a fault equal to one of its last
// faults is a new fault.
func (e *Engine) newLife(s *source, f *wire.Frame) *source {
	for i := range s.records {
		if c := s.records[i].ctx; c != nil {
			e.abandon(c)
		}
	}
	e.cfg.RX.Forget(f.SrcNode)
	// Contexts that are ending refer to the old records.
	s = &source{epoch: f.Epoch, link: f.Link}
	e.recv.sources[f.SrcNode] = s
	return s
}

// advance moves a record to a newer sequence number. It returns false if the frame has already
// been answered.
func (e *Engine) advance(r *record, f *wire.Frame) bool {
	newUse := !r.known || r.first != f.First
	r.known, r.newest, r.answered = true, f.Seq, false
	if newUse {
		r.first, r.acked = f.First, false
	}
	if c := r.ctx; c != nil {
		if c.writing > 0 && !newUse {
			// The block is still being written under the old number: once it is in memory, its
			// next number is acknowledged.
			r.answered = true
			e.answer(&f.Header, e.want(int(c.slot), device.CodeNoContext))
			return false
		}
		e.abandon(c)
	}
	if r.acked {
		// The acknowledgement was lost or late. The block is not written again: the application
		// may have changed the buffer after completion.
		r.answered = true
		e.answer(&f.Header, device.CodeAck)
		return false
	}
	return true
}

// openContext checks whether the block may be received and opens a context for it; it returns nil
// if the block was refused.
func (e *Engine) openContext(r *record, f *wire.Frame) *context {
	slot := e.SlotOf(f.DstPDID, f.DstGeneration)
	admitted := slot >= 0
	if admitted && f.Read {
		var later bool
		if admitted, later = e.readOpen(uint8(slot), f); later {
			return nil
		}
	} else if admitted {
		admitted = e.domains[slot].admits(f.SrcPDID)
	}
	code := device.CodeAck
	switch limit := uint64(1) << uint(e.cfg.VABits); {
	case f.Length == 0 && f.Kind == wire.Data,
		uint64(f.VA)%device.BlockSize+uint64(f.Length) > device.BlockSize,
		uint64(f.Remaining) < uint64(f.Length):
		// A sender that keeps to messages.md 5 never makes such a block (this use of the reserved
		// code is defined by this project).
		code = device.CodeReserved
	case !admitted:
		code = device.CodeDomain
	case uint64(f.VA) >= limit || uint64(f.Length) > limit-uint64(f.VA),
		f.HasWords && !f.WordsMissing && uint64(f.Completion.VA) > limit-16:
		code = device.CodeDecode
	case e.stillWriting(slot, f), !e.contextsFor(slot, f):
		code = e.want(slot, device.CodeNoContext)
	}
	if code != device.CodeAck {
		r.answered = true
		e.answer(&f.Header, code)
		return nil
	}
	c := e.recv.free
	if c == nil {
		c = new(context)
	} else {
		e.recv.free = c.next
	}
	*c = context{rec: r, header: f.Header, slot: uint8(slot), want: wire.All(int(f.Length)), hasWords: f.HasWords, began: e.recv.now}
	r.ctx = c
	e.count(c, 1)
	e.link(c)
	return c
}

// stillWriting reports whether a context that f's block replaces is still being written to the
// same memory: by a former use of the ID, or in a former life of the node. If f's block were
// acknowledged now, that write could land later and overwrite what the application has written
// since.
func (e *Engine) stillWriting(slot int, f *wire.Frame) bool {
	for _, c := range e.recv.ending {
		if h := &c.header; h.SrcNode == f.SrcNode && int(c.slot) == slot && (h.ID == f.ID || h.Epoch != f.Epoch) {
			return true
		}
	}
	return false
}

// hangTime is how long a block may be in writing before its memory counts as not answering:
// page-ins count as stuck after the same time (package fault). Defined by this project.
const hangTime = int64(100 * time.Millisecond)

// want returns the code that refuses a block because a slot lacks a resource. If the slot's
// memory does not answer, it is the page fault's code: the block pauses, as for an absent page
// that is not loaded, because more contexts or room would not help.
func (e *Engine) want(slot int, code device.Code) device.Code {
	hangs := func(c *context) bool {
		return int(c.slot) == slot && c.writing > 0 && e.recv.now-c.began > hangTime
	}
	for c := e.recv.head; c != nil; c = c.next {
		if hangs(c) {
			return device.CodeSlaveError
		}
	}
	if slices.ContainsFunc(e.recv.ending, hangs) {
		return device.CodeSlaveError
	}
	return code
}

// write submits the packets in mask to memory, one access per contiguous run. It returns false if
// mask is empty.
func (e *Engine) write(c *context, f *wire.Frame, mask uint64) bool {
	c.got |= mask
	f.Refs = 1 // until all runs are submitted
	for mask != 0 {
		i := bits.TrailingZeros64(mask)
		n := bits.TrailingZeros64(^(mask >> uint(i)))
		if n == 64 {
			mask = 0
		} else {
			mask &^= (1<<uint(n) - 1) << uint(i)
		}
		from, to := i*device.MTU, min((i+n)*device.MTU, len(f.Payload))
		a := e.newAccess(writeData)
		a.Slot, a.Write, a.VA = c.slot, true, f.VA+device.VA(from)
		a.Data, a.ctx, a.frame = f.Payload[from:to], c, f
		a.High = f.Short()
		c.writing++
		f.Refs++
		e.submit(a)
	}
	f.Refs--
	return f.Refs > 0
}

// advanceBlock performs a block's next step: the words when every byte is in memory, then the
// acknowledgement.
func (e *Engine) advanceBlock(c *context) {
	if c.dead || c.nacked || c.writing > 0 || c.got != c.want {
		return
	}
	if c.hasWords && !c.wordsIn {
		if !c.haveWords || c.wordsOut {
			return
		}
		if c.header.Read && !e.drained(c) {
			return
		}
		c.wordsOut = true
		a := e.newAccess(writeWords)
		a.Slot, a.Write, a.Ordered, a.VA, a.ctx, a.High = c.slot, true, true, c.completion.VA, c, true
		a.Data = e.cfg.Pool.Payload(16)
		putWords(a.Data, c.completion)
		c.writing++
		e.submit(a)
		return
	}
	e.cfg.Counts[device.RXBlocks]++
	r := c.rec
	if r.newest == c.header.Seq {
		r.answered = true
	}
	r.acked = true
	e.answer(&c.header, device.CodeAck)
	e.abandon(c)
}

func putWords(b []byte, w wire.Completion) {
	for i := 0; i < 8; i++ {
		b[i] = byte(w.First >> (8 * i))
		b[8+i] = byte(w.Last >> (8 * i))
	}
}

// written completes a write access.
func (e *Engine) written(a *Access, ok bool, failed uint64) {
	c, f, words := a.ctx, a.frame, a.kind == writeWords
	slot, va, orphan := a.Slot, a.VA, a.orphan
	if words {
		e.cfg.Pool.PutPayload(a.Data)
	}
	e.drop(a)
	if f != nil {
		f.Refs--
	}
	if !orphan {
		c.writing--
		if words && !ok && c.header.Read {
			e.reopen(c)
		}
		switch {
		case ok && words:
			c.wordsIn = true
			if c.header.Read {
				e.readDone(slot, c)
			}
			if r := c.rec; c.dead && r.first == c.header.First {
				// The block was abandoned while its words were being written. They are in memory,
				// so the application may use the buffer: no frame of this use of the ID may write
				// it again.
				r.acked = true
				if r.newest == c.header.Seq {
					r.answered = true
				}
			}
			e.sink.Written(slot, va)
		case !ok && !c.dead:
			h, base := c.header, c.header.VA
			if words {
				h.Remaining, base = 16, va
			}
			e.push(e.cfg.RX, &h, h.SrcNode, h.DstPDID, va, failed, base)
			e.nack(c, device.CodeSlaveError)
		}
		if c.dead {
			if c.writing == 0 {
				e.recycle(c)
			}
		} else {
			e.advanceBlock(c)
		}
		if e.recv.draining > 0 {
			e.drain()
		}
	}
	if f != nil && f.Refs == 0 {
		e.cfg.Pool.Put(f)
	}
}

// nack answers a block once; the context stays until a newer sequence number arrives, so that the
// block's later absent pages are reported too.
func (e *Engine) nack(c *context, code device.Code) {
	if c.nacked || c.dead {
		return
	}
	c.nacked = true
	if c.rec.newest == c.header.Seq {
		c.rec.answered = true
	}
	e.answer(&c.header, code)
}

// answer sends the one answer for (source, ID, sequence number).
func (e *Engine) answer(h *wire.Header, code device.Code) {
	f := e.cfg.Pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Ack, Epoch: h.Epoch,
		SrcNode: e.cfg.Node, SrcPDID: h.DstPDID, DstNode: h.SrcNode, DstPDID: h.SrcPDID, DstMailbox: device.MailboxAck,
		SrcGeneration: h.DstGeneration, DstGeneration: h.SrcGeneration,
		ID: h.ID, Seq: h.Seq, First: h.First, Code: code,
	}
	e.cfg.Counts[device.TXPackets]++
	e.sink.Transmit(f)
}

// endContexts abandons the contexts for which which returns true.
func (e *Engine) endContexts(which func(*context) bool) {
	for c := e.recv.head; c != nil; {
		next := c.next
		if which(c) {
			e.abandon(c)
		}
		c = next
	}
}

// abandon removes a context from use; it ends with its last access.
func (e *Engine) abandon(c *context) {
	e.unlink(c)
	c.rec.ctx = nil
	c.dead = true
	if c.draining {
		c.draining = false
		e.recv.draining--
		e.reopen(c)
	}
	if c.writing == 0 {
		e.recycle(c)
		return
	}
	e.recv.ending = append(e.recv.ending, c)
}

func (e *Engine) recycle(c *context) {
	e.recv.ending = slices.DeleteFunc(e.recv.ending, func(x *context) bool { return x == c })
	e.count(c, -1)
	*c = context{next: e.recv.free}
	e.recv.free = c
}

func (e *Engine) link(c *context) {
	c.prev, c.next = e.recv.tail, nil
	if c.prev != nil {
		c.prev.next = c
	} else {
		e.recv.head = c
	}
	e.recv.tail = c
}

func (e *Engine) unlink(c *context) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		e.recv.head = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		e.recv.tail = c.prev
	}
	c.prev, c.next = nil, nil
}

func (e *Engine) touch(c *context, now int64) {
	c.touched = now
	if e.recv.tail != c {
		e.unlink(c)
		e.link(c)
	}
}

// Deadline returns when Expire is due, math.MaxInt64 for never.
func (e *Engine) Deadline() int64 {
	if c := e.recv.head; c != nil {
		return c.touched + 2*e.recv.timeout
	}
	return math.MaxInt64
}

// Expire ends contexts that have received no packet for twice the time-out. A context with a
// write in flight stays: its buffer is in use.
func (e *Engine) Expire(now int64) {
	for c := e.recv.head; c != nil && c.touched+2*e.recv.timeout <= now; c = e.recv.head {
		if c.writing > 0 {
			e.touch(c, now)
			if e.recv.head == c {
				return
			}
			continue
		}
		e.abandon(c)
	}
}
