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

// discard drops an access that has not begun, and gives its buffer back.
func (e *Engine) discard(a *Access) {
	if f := a.frame; f == nil {
		e.cfg.Pool.PutPayload(a.Data)
	} else if f.Refs--; f.Refs == 0 {
		e.cfg.Pool.Put(f)
	}
	e.drop(a)
}

// accessQueue is what one slot has in flight, and what waits for room: those of
// the high class first.
type accessQueue struct {
	inflight    int
	waiting     int // writes of the high class not among them
	waitingHigh int // writes of the high class
	high, usual accessList
}

// room tells whether one more access may begin.
func (q *accessQueue) room(high bool) bool {
	if high {
		return q.inflight < maxAccesses
	}
	return q.inflight < maxAccesses-keptHigh
}

// waits counts writes of a class that wait.
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

// submit lets an access begin, or wait where too many of its slot are in flight.
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

func (e *Engine) begin(a *Access) {
	bank, v := e.cfg.SMMU.Begin(uint16(a.Slot), a.VA)
	a.bank = int8(bank)
	if v != smmu.Translate {
		e.end(a, false, pageBits(a.Pages()))
		return
	}
	e.slots[a.Slot].inflight++
	e.sink.Walk(a)
}

// pump begins waiting accesses of a slot as far as there is room.
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

// live gives the access that an answer names, nil where there is none.
func (e *Engine) live(id uint32) *Access {
	if int(id) >= len(e.accesses) {
		return nil
	}
	if a := e.accesses[id]; a.kind != 0 && !a.queued {
		return a
	}
	return nil
}

// Walked answers Walk: a bit a page, absent (no translation) or denied (no
// permission).
func (e *Engine) Walked(id uint32, absent, denied uint64) {
	a := e.live(id)
	if a == nil || a.bank < 0 {
		return
	}
	slot := a.Slot
	if a.orphan {
		e.settle(a)
		e.end(a, false, 0)
		e.pump(slot)
		return
	}
	pages := a.Pages()
	r := e.cfg.SMMU.Finish(int(a.bank), a.VA, pages, a.Write, absent, denied)
	switch {
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

// moveParts moves the pages of an access that were not ignored (CFRE = 0: the
// others read as zero, and writes to them are dropped, without an error).
func (e *Engine) moveParts(a *Access, pages int, ignored uint64) {
	if !a.Write {
		clear(a.Data)
	}
	a.children = 1 // held until all parts are made
	for i := 0; i < pages; {
		if ignored>>uint(i)&1 != 0 {
			i++
			continue
		}
		j := i
		for j < pages && ignored>>uint(j)&1 == 0 {
			j++
		}
		first := a.VA.Page() + device.VA(i)<<device.PageShift
		if first < a.VA {
			first = a.VA
		}
		end := a.VA.Page() + device.VA(j)<<device.PageShift
		if last := a.VA + device.VA(len(a.Data)); end > last {
			end = last
		}
		p := e.newAccess(part)
		p.Slot, p.Write, p.Ordered, p.VA, p.parent = a.Slot, a.Write, a.Ordered, first, a
		p.Data = a.Data[first-a.VA : end-a.VA]
		a.children++
		e.sink.Move(p)
		i = j
	}
	e.partDone(a)
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

// Moved answers Move; ok false: the bytes could not be moved although the walk
// had succeeded, which is a slave error.
func (e *Engine) Moved(id uint32, ok bool) {
	a := e.live(id)
	if a == nil {
		return
	}
	if a.kind == part {
		p := a.parent
		e.drop(a)
		e.partDone(p)
		return
	}
	if a.bank < 0 {
		return
	}
	if !ok && !a.orphan {
		e.cfg.SMMU.Invalidate(int(a.bank), a.VA, a.Write)
	}
	slot := a.Slot
	e.settle(a)
	failed := uint64(0)
	if !ok {
		failed = pageBits(a.Pages())
	}
	e.end(a, ok, failed)
	e.pump(slot)
}

func (e *Engine) settle(a *Access) {
	e.cfg.SMMU.End(int(a.bank))
	e.slots[a.Slot].inflight--
}

// end gives an access's outcome to the part that made it; failed has a bit for
// each page that was refused.
func (e *Engine) end(a *Access, ok bool, failed uint64) {
	if a.kind == readBlock {
		e.read(a, ok, failed)
		return
	}
	e.written(a, ok, failed)
}
