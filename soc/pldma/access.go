package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/smmu"
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

func (e *Engine) drop(a *Access) {
	*a = Access{ID: a.ID, next: e.freeList}
	e.freeList = a
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

// accessQueue is a slot's accesses in flight and those waiting for room; accesses of the high
// class go first.
type accessQueue struct {
	inflight    int
	waiting     int // waiting writes, without those of the high class
	waitingHigh int // waiting writes of the high class
	high, usual accessList
}

// room reports whether one more access may begin.
func (q *accessQueue) room(high bool) bool {
	if high {
		return q.inflight < maxAccesses
	}
	return q.inflight < maxAccesses-keptHigh
}

// waits returns the count of waiting writes of a class.
func (q *accessQueue) waits(high bool) *int {
	if high {
		return &q.waitingHigh
	}
	return &q.waiting
}

type accessList struct{ head, tail *Access }

func (l *accessList) put(a *Access) {
	if l.tail != nil {
		l.tail.next = a
	} else {
		l.head = a
	}
	l.tail = a
}

func (l *accessList) take() *Access {
	a := l.head
	if a == nil {
		return nil
	}
	if l.head = a.next; l.head == nil {
		l.tail = nil
	}
	a.next = nil
	return a
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
		e.read(a, ok, failed)
		return
	}
	e.written(a, ok, failed)
}
