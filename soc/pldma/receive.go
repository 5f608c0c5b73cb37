package pldma

import (
	"math/bits"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// maxSources limits the nodes whose sequence numbers are remembered; blocks from further nodes
// are refused with code 3 (defined by this project).
const maxSources = 4096

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
	r := s.records.At(int(f.ID))
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
		if !f.Read && !e.admits(int(c.slot), &c.header, &f.Completion) {
			e.nack(c, device.CodeDomain)
			return false
		}
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

// Introduce makes e know the current life of another node, as after its first frame. It is for
// simulations that do not begin with the first frames.
func (e *Engine) Introduce(other *Engine) {
	if s := e.recv.sources[other.cfg.Node]; s == nil && len(e.recv.sources) >= maxSources || s != nil && s.link != 0 {
		return
	}
	if e.number++; e.number == 0 {
		e.number++
	}
	e.recv.sources[other.cfg.Node] = &source{epoch: other.epoch, link: e.number}
	other.links[e.cfg.Node] = e.number
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
	for _, r := range s.records.All() {
		if c := r.ctx; c != nil {
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
	var words *wire.Completion // nil: not known yet
	if f.HasWords && !f.WordsMissing {
		words = &f.Completion
	}
	admitted := slot >= 0
	if admitted && f.Read {
		var later bool
		if admitted, later = e.readOpen(uint8(slot), f); later {
			return nil
		}
	} else if admitted {
		admitted = e.admits(slot, &f.Header, words)
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
		words != nil && uint64(words.VA) > limit-wordsSize:
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
	if words != nil {
		c.haveWords, c.completion = true, *words
	}
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
