package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
)

func (e *Engine) newAccess(k accessKind) *Access {
	a := e.freeList
	if a == nil {
		a = &Access{ID: uint32(len(e.accesses))}
		e.accesses = append(e.accesses, a)
	} else {
		e.freeList = a.next
	}
	*a = Access{ID: a.ID, kind: k, bank: -1}
	return a
}

// discard drops an access that has not begun and releases its buffer.
func (e *Engine) discard(a *Access) {
	if f := a.frame; f == nil {
		e.cfg.Pool.PutPayload(a.Data)
	} else if f.Refs--; f.Refs == 0 {
		e.cfg.Pool.Put(f)
	}
	e.drop(a)
}

// submit begins an access, or queues it if too many of its slot are in flight.
func (e *Engine) submit(a *Access) {
	q := &e.slots[a.Slot]
	if q.room(a.High) {
		e.begin(a)
		return
	}
	a.queued = true
	if a.Write {
		*q.waits(a.High)++
	}
	if a.High {
		q.high.put(a)
	} else {
		q.usual.put(a)
	}
}

// over reports whether the purpose of an access has ended: it moves no more bytes and its outcome
// is ignored.
func (a *Access) over() bool { return a.orphan || a.gone || a.ctx != nil && a.ctx.dead }

func (e *Engine) begin(a *Access) {
	if a.over() {
		e.end(a, false, 0)
		return
	}
	bank, v := e.cfg.SMMU.Begin(uint16(a.Slot), a.VA)
	a.bank = int8(bank)
	if v == smmu.Abort {
		e.end(a, false, pageBits(a.Pages()))
		return
	}
	e.slots[a.Slot].inflight++
	if v == smmu.Stall {
		a.stalled = pageBits(a.Pages())
		return
	}
	e.sink.Walk(a)
}

// pump begins waiting accesses of a slot while there is room.
func (e *Engine) pump(slot uint8) {
	q := &e.slots[slot]
	for {
		var a *Access
		if q.room(true) {
			a = q.high.take()
		}
		if a == nil && q.room(false) {
			a = q.usual.take()
		}
		if a == nil {
			return
		}
		a.queued = false
		if a.Write {
			*q.waits(a.High)--
		}
		e.begin(a)
	}
}

func pageBits(n int) uint64 { return 1<<uint(n) - 1 }

// live returns the access that an answer names, nil if there is none.
func (e *Engine) live(id uint32) *Access {
	if int(id) >= len(e.accesses) {
		return nil
	}
	if a := e.accesses[id]; a.kind != 0 && !a.queued {
		return a
	}
	return nil
}

// Walked answers Walk with the result of the walk.
func (e *Engine) Walked(id uint32, w smmu.Walk) {
	a := e.live(id)
	if a == nil || a.bank < 0 {
		return
	}
	slot := a.Slot
	if a.over() {
		e.settle(a)
		e.end(a, false, 0)
		e.pump(slot)
		return
	}
	pages := a.Pages()
	r := e.cfg.SMMU.Finish(a.translated(0), w)
	switch {
	case r.Stalled != 0:
		a.stalled = r.Stalled
	case r.Aborted != 0:
		e.settle(a)
		e.end(a, false, r.Aborted)
		e.pump(slot)
	case r.Ignored != 0:
		e.moveParts(a, pages, r.Ignored)
	default:
		e.sink.Move(a)
	}
}

// Resume repeats the walks of a context bank's stalled accesses, or aborts the accesses
// (CB_RESUME).
func (e *Engine) Resume(bank int, terminate bool) {
	for _, a := range e.accesses {
		if a.stalled == 0 || int(a.bank) != bank {
			continue
		}
		failed := a.stalled
		a.stalled = 0
		switch slot := a.Slot; {
		case terminate || a.over():
			e.settle(a)
			e.end(a, false, failed)
			e.pump(slot)
		default:
			e.sink.Walk(a)
		}
	}
}

// translated describes an access to the SMMU, from byte n on.
func (a *Access) translated(n int) smmu.Access {
	bank := a.bank
	if a.kind == part {
		bank = a.parent.bank
	}
	return smmu.Access{
		Bank: int(bank), Stream: uint16(a.Slot), VA: a.VA + device.VA(n),
		Pages: pagesOf(a.VA+device.VA(n), len(a.Data)-n), Write: a.Write,
	}
}

// moveParts moves the pages of an access that were not ignored (CFRE = 0: the others read as
// zero, and writes to them are dropped without an error).
func (e *Engine) moveParts(a *Access, pages int, ignored uint64) {
	if !a.Write {
		clear(a.Data)
	}
	a.children = 1 // held until all parts exist
	for i := 0; i < pages; {
		if ignored>>uint(i)&1 != 0 {
			i++
			continue
		}
		j := i
		for j < pages && ignored>>uint(j)&1 == 0 {
			j++
		}
		e.movePart(a, a.startOf(i), a.startOf(j))
		i = j
	}
	e.partDone(a)
}

// startOf returns the byte of an access at which its page i begins; pageOf returns the page of a
// byte.
func (a *Access) startOf(i int) int {
	return min(max(0, i<<device.PageShift-int(a.VA.Offset())), len(a.Data))
}

func (a *Access) pageOf(i int) int { return (int(a.VA.Offset()) + i) >> device.PageShift }

// movePart moves the bytes [from, to) of an access.
func (e *Engine) movePart(a *Access, from, to int) {
	p := e.newAccess(part)
	p.Slot, p.Write, p.Ordered, p.VA, p.parent = a.Slot, a.Write, a.Ordered, a.VA+device.VA(from), a
	p.Data = a.Data[from:to]
	a.children++
	e.sink.Move(p)
}

func (e *Engine) partDone(a *Access) {
	a.children--
	if a.children > 0 {
		return
	}
	slot := a.Slot
	e.settle(a)
	e.end(a, true, 0)
	e.pump(slot)
}

// Moved answers Move with the number of bytes moved before a failure. If these are not all, the
// next byte's page could not be accessed although its walk had succeeded: it was unmapped since,
// or the move is the first to find that the permission is missing. That is a fault of this page;
// the state of the pages behind it is unknown.
func (e *Engine) Moved(id uint32, bytes int) {
	a := e.live(id)
	if a == nil || a.kind != part && a.bank < 0 {
		return
	}
	bytes = max(0, bytes)
	failed := bytes < len(a.Data)
	if a.kind == part {
		p := a.parent
		if failed && !p.over() {
			e.cfg.SMMU.Refuse(a.translated(bytes))
			from := int(a.VA - p.VA)
			e.skip(p, from+bytes, from+len(a.Data))
		}
		e.drop(a)
		e.partDone(p)
		return
	}
	var bit uint64
	if failed && !a.over() {
		if !e.cfg.SMMU.Refuse(a.translated(bytes)) {
			a.children = 1 // held until the rest is in flight
			e.skip(a, bytes, len(a.Data))
			e.partDone(a)
			return
		}
		bit = 1 << uint(a.pageOf(bytes))
	}
	slot := a.Slot
	e.settle(a)
	e.end(a, !failed, bit)
	e.pump(slot)
}

// skip ignores the page of byte at of an access, as CFRE = 0 requires, and moves the bytes behind
// it up to byte end.
func (e *Engine) skip(a *Access, at, end int) {
	page := a.pageOf(at)
	next := min(a.startOf(page+1), end)
	if !a.Write {
		clear(a.Data[a.startOf(page):next])
	}
	if next < end {
		e.movePart(a, next, end)
	}
}

func (e *Engine) settle(a *Access) {
	e.cfg.SMMU.End(int(a.bank))
	e.slots[a.Slot].inflight--
}

// end passes an access's outcome to the part that made it; failed has a bit for each page that
// was refused.
func (e *Engine) end(a *Access, ok bool, failed uint64) {
	if a.kind == readBlock {
		e.readEnded(a, ok, failed)
		return
	}
	e.writeEnded(a, ok, failed)
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

// writeEnded handles the end of a write access, which may have failed.
func (e *Engine) writeEnded(a *Access, ok bool, failed uint64) {
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

// drain advances the blocks whose words wait for others' writes.
func (e *Engine) drain() {
	for c := e.recv.head; c != nil; {
		next := c.next
		if c.draining {
			e.advanceBlock(c)
		}
		c = next
	}
}
