package user

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Indexes of an interrupt's descriptors, one for each action of SET_IRQS.
const (
	onTrigger = iota
	onMask
	onUnmask
	numActions
)

// interrupts delivers a device's interrupts to eventfds of the client. It is safe for concurrent
// use.
//
// A vector is delivered when it has an eventfd, its mask bit and the function's are clear, and
// the device may master the bus. Otherwise it becomes pending and is delivered as soon as all
// that holds. The MSI-X enable bit is ignored: assigning eventfds enables the interrupt, as with
// the kernel's VFIO, whose clients never write that bit.
type interrupts struct {
	mu   sync.Mutex
	vec  *vectorTable
	open bool              // bus mastering on, device awake, function not masked
	fds  [numActions][]int // of the MSI-X vectors; -1: none
	err  int               // IRQErr's eventfd
	req  int               // IRQReq's
	*signaller
}

func newInterrupts(m MSIX, stuck func()) *interrupts {
	q := &interrupts{signaller: newSignaller(stuck), vec: newVectorTable(m), err: -1, req: -1}
	for a := range q.fds {
		q.fds[a] = make([]int, m.Vectors)
		for v := range q.fds[a] {
			q.fds[a][v] = -1
		}
	}
	return q
}

// raise delivers vector v, or makes it pending.
func (q *interrupts) raise(v int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if v < 0 || v >= q.vec.m.Vectors {
		return fmt.Errorf("MSI-X vector %d of %d", v, q.vec.m.Vectors)
	}
	q.vec.setPending(v, true)
	q.deliver(v)
	return nil
}

// deliver sends a pending vector if delivery is possible. The caller holds the lock.
func (q *interrupts) deliver(v int) {
	fd := q.fds[onTrigger][v]
	if fd < 0 || !q.open || q.vec.masked(v) || !q.vec.isPending(v) {
		return
	}
	q.vec.setPending(v, false)
	q.signal(fd)
}

// setOpen applies the state of configuration space to delivery.
func (q *interrupts) setOpen(open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = open
	if open {
		for v := range q.vec.m.Vectors {
			q.deliver(v)
		}
	}
}

// setMask masks or unmasks a vector and signals the eventfds for mask changes. The caller holds
// the lock.
func (q *interrupts) setMask(v int, on bool) {
	if q.vec.masked(v) != on {
		q.vec.setMasked(v, on)
		q.maskChanged(v)
	}
}

func (q *interrupts) maskChanged(v int) {
	if q.vec.masked(v) {
		q.signal(q.fds[onMask][v])
		return
	}
	q.signal(q.fds[onUnmask][v])
	q.deliver(v)
}

func (q *interrupts) readTable(offset uint64, size int) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.vec.read(offset, size)
}

func (q *interrupts) writeTable(offset uint64, size int, value uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if v := q.vec.write(offset, size, value); v >= 0 {
		q.maskChanged(v)
	}
}

// reset clears the pending bits and the table. The assigned eventfds stay and their vectors are
// unmasked: the kernel restores a vector in use after a reset, and clients rely on that.
func (q *interrupts) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = false
	clear(q.vec.pending)
	clear(q.vec.entries)
	for v, fd := range q.fds[onTrigger] {
		q.vec.setMasked(v, fd < 0)
	}
}

// count returns how many interrupts an index has, and its flags.
func (q *interrupts) count(index uint32) (n, flags uint32) {
	switch index {
	case IRQMSIX:
		return uint32(q.vec.m.Vectors), IRQEventFD | IRQMaskable
	case IRQErr, IRQReq:
		return 1, IRQEventFD
	}
	return 0, 0
}

// set performs SET_IRQS. If it accepts the request it owns the descriptors; if not they remain
// the caller's.
func (q *interrupts) set(m IRQSet, fds []int) error {
	if m.Index >= numIRQs {
		return refuse(unix.EINVAL, "interrupt index %d of %d", m.Index, numIRQs)
	}
	n, _ := q.count(m.Index)
	if m.Count == 0 {
		if m.Start != 0 || m.Flags != IRQDataNone|IRQActionTrigger || len(fds) != 0 {
			return refuse(unix.EINVAL, "no interrupts, but start %d, flags %#x and %d descriptors", m.Start, m.Flags, len(fds))
		}
		q.disable(m.Index)
		return nil
	}
	if uint64(m.Start)+uint64(m.Count) > uint64(n) {
		return refuse(unix.EINVAL, "interrupts %d+%d of %d of index %d", m.Start, m.Count, n, m.Index)
	}
	if m.Index != IRQMSIX && m.Flags&IRQActionTrigger == 0 {
		return refuse(unix.EINVAL, "index %d cannot be masked", m.Index)
	}
	eventfd := m.Flags&IRQDataEventFD != 0
	if len(fds) != 0 && (!eventfd || len(fds) != int(m.Count)) {
		return refuse(unix.EINVAL, "%d descriptors for %d interrupts with flags %#x", len(fds), m.Count, m.Flags)
	}
	for _, fd := range fds {
		if !isEventFD(fd) {
			return refuse(unix.EINVAL, "a descriptor is not an eventfd")
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range int(m.Count) {
		v := int(m.Start) + i
		switch {
		case eventfd:
			fd := -1
			if len(fds) != 0 {
				fd = fds[i]
			}
			q.assign(m, v, fd)
		case m.Flags&IRQDataBool != 0 && m.Bools[i] == 0:
		case m.Flags&IRQActionMask != 0:
			q.setMask(v, true)
		case m.Flags&IRQActionUnmask != 0:
			q.setMask(v, false)
		default: // the client triggers the interrupt itself, regardless of the masks
			q.signal(*q.trigger(m.Index, v))
		}
	}
	return nil
}

func (q *interrupts) trigger(index uint32, v int) *int {
	switch index {
	case IRQErr:
		return &q.err
	case IRQReq:
		return &q.req
	}
	return &q.fds[onTrigger][v]
}

// assign replaces the eventfd of an interrupt's action. The caller holds the lock.
func (q *interrupts) assign(m IRQSet, v, fd int) {
	place := q.trigger(m.Index, v)
	switch {
	case m.Flags&IRQActionMask != 0:
		place = &q.fds[onMask][v]
	case m.Flags&IRQActionUnmask != 0:
		place = &q.fds[onUnmask][v]
	}
	if *place >= 0 {
		closeFDs([]int{*place})
	}
	*place = fd
	if m.Index == IRQMSIX && m.Flags&IRQActionTrigger != 0 {
		q.setMask(v, fd < 0)
		if fd >= 0 {
			q.deliver(v)
		}
	}
}

// disable removes every eventfd of an index.
func (q *interrupts) disable(index uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch index {
	case IRQMSIX:
		for a := range q.fds {
			for v, fd := range q.fds[a] {
				if fd >= 0 {
					closeFDs([]int{fd})
					q.fds[a][v] = -1
				}
			}
		}
		for v := range q.vec.m.Vectors {
			q.vec.setMasked(v, true)
		}
	case IRQErr, IRQReq:
		if fd := q.trigger(index, 0); *fd >= 0 {
			closeFDs([]int{*fd})
			*fd = -1
		}
	}
}
