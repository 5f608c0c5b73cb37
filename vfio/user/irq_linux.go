package user

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Places of an interrupt's descriptors, one for each action of SET_IRQS.
const (
	onTrigger = iota
	onMask
	onUnmask
	numActions
)

// interrupts delivers a device's interrupts to eventfds of the client. It may
// be used from any goroutine.
//
// A vector is delivered when it has an eventfd, its mask bit and the function's
// are off, and the device may master the bus; otherwise it becomes pending and
// is delivered as soon as all that holds. The MSI-X enable bit is not asked:
// assigning eventfds enables the interrupt, as it does with the kernel's VFIO,
// whose clients never write that bit.
type interrupts struct {
	mu   sync.Mutex
	vec  *vectorTable
	open bool              // bus mastering on, device awake, function not masked
	fds  [numActions][]int // of the MSI-X vectors; -1 is none
	err  int               // IRQErr's eventfd
	req  int               // IRQReq's

	// A peer can fill its eventfd so that a write to it blocks. guard drains
	// it then and has the peer thrown out (stuck): nobody else loses more than
	// a moment.
	guard   *time.Timer
	stuck   func()
	gmu     sync.Mutex
	writing int // the eventfd that is being written, or -1
}

// guardDelay is how long a write to an eventfd may block (ours; a write that
// does not block takes some 300 ns).
const guardDelay = 10 * time.Millisecond

var eventfdOne = func() []byte { return order.AppendUint64(nil, 1) }()

func newInterrupts(m MSIX, stuck func()) *interrupts {
	q := &interrupts{stuck: stuck, vec: newVectorTable(m), err: -1, req: -1, writing: -1}
	for a := range q.fds {
		q.fds[a] = make([]int, m.Vectors)
		for v := range q.fds[a] {
			q.fds[a][v] = -1
		}
	}
	q.guard = time.AfterFunc(time.Hour, q.rescue)
	q.guard.Stop()
	return q
}

// signal adds one to an eventfd. It does not block for longer than a few
// guardDelays, whatever the peer does with it.
func (q *interrupts) signal(fd int) {
	if fd < 0 {
		return
	}
	q.gmu.Lock()
	q.writing = fd
	q.gmu.Unlock()
	q.guard.Reset(guardDelay)
	for {
		// EAGAIN: the counter is full, so the peer is signalled already.
		if _, err := unix.Write(fd, eventfdOne); err != unix.EINTR {
			break
		}
	}
	q.guard.Stop()
	q.gmu.Lock()
	q.writing = -1
	q.gmu.Unlock()
}

// rescue looks after a write that has taken long. If the eventfd is full, it is
// emptied; if not, the write is done or will be, and the machine is just busy.
func (q *interrupts) rescue() {
	q.gmu.Lock()
	defer q.gmu.Unlock()
	if q.writing < 0 {
		return
	}
	p := []unix.PollFd{{Fd: int32(q.writing), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, 0); err == nil && n == 0 {
		drain(q.writing)
		q.stuck()
	}
	q.guard.Reset(guardDelay)
}

// drain takes an eventfd's count without ever blocking, be its O_NONBLOCK what
// the peer wants; it says whether there was one.
func drain(fd int) bool {
	var b [8]byte
	n, err := unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
	return err == nil && n == len(b)
}

// raise sends vector v, or makes it pending.
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

// deliver sends a pending vector if it can be. The lock is held.
func (q *interrupts) deliver(v int) {
	fd := q.fds[onTrigger][v]
	if fd < 0 || !q.open || q.vec.masked(v) || !q.vec.isPending(v) {
		return
	}
	q.vec.setPending(v, false)
	q.signal(fd)
}

// setOpen follows what configuration space says of delivery.
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

// setMask masks or unmasks a vector and tells those who asked. The lock is held.
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

// reset forgets what is pending and what the client stored in the table.
// Assigned eventfds stay, and their vectors unmasked: the kernel restores a
// vector in use after a reset, and clients are written for that.
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

// count gives how many interrupts an index has, and its flags.
func (q *interrupts) count(index uint32) (n, flags uint32) {
	switch index {
	case IRQMSIX:
		return uint32(q.vec.m.Vectors), IRQEventFD | IRQMaskable
	case IRQErr, IRQReq:
		return 1, IRQEventFD
	}
	return 0, 0
}

// set carries out SET_IRQS. It takes the descriptors of a request that it
// accepts; those of one it refuses stay the caller's.
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
			return refuse(unix.EINVAL, "a descriptor is no eventfd")
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
		default: // the client triggers it itself, past the masks
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

// assign replaces the eventfd of an interrupt's action. The lock is held.
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

// disable takes every eventfd of an index away.
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

// isEventFD says whether a descriptor is an eventfd: nothing else may be
// written to from the device's side, since it could block for good.
func isEventFD(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && name == "anon_inode:[eventfd]"
}

// notify signals the eventfd of an index outside MSI-X, if there is one.
func (q *interrupts) notify(index uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.signal(*q.trigger(index, 0))
}
