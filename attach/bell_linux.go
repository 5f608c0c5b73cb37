package attach

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Armed is memory with the ARM words of rings. Disarm stores 0 to the u32 at va and reports whether
// it was not 0, or cannot be reached. It may sleep, as any access to a process's memory.
type Armed interface{ Disarm(va device.VA) bool }

// Bell is pfd's end of a ring.
type Bell struct {
	va     device.VA
	size   uint64
	arm    device.VA
	memory Armed // nil: cannot be reached
	later  func(f func())

	mu    sync.Mutex
	fd    int            // -1 once closed
	sends sync.WaitGroup // those of late
	due   bool           // late was passed to later, and has not begun
	load  load
}

// load is how much a ring's sends cost pfd. A send calls each waiter of the process's end, and an epoll
// instance is one: a process that has 20,000 of them makes it take 2 ms (measured).
type load struct {
	suspect bool      // a send took long: the next one is timed by the processor's time
	apart   time.Time // until then sends are made by later
}

// Values below are defined by this project.
const (
	longSend  = 50 * time.Microsecond
	apartTime = 10 * time.Second
)

// NewBell makes a ring. The caller closes peer, the process's end, after it was sent. later runs a
// function on another goroutine, soon or when it is the user's turn: one that wakes a process that
// makes its wake-ups long.
//
// It is a socket pair. A process cannot make pfd's send block, whatever it does with its own end;
// an eventfd would block at its maximum if the process cleared O_NONBLOCK. With SOCK_SEQPACKET the
// process's end reads as closed when pfd has ended.
func NewBell(r *Ring, memory Armed, later func(f func())) (b *Bell, peer int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("create a ring: %w", os.NewSyscallError("socketpair", err))
	}
	// The process must not send anything: pfd would never read it, and a descriptor of the process
	// could block pfd's close. The kernel's smallest buffer has room for several messages.
	if err = unix.Shutdown(pair[0], unix.SHUT_RD); err == nil {
		err = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
	}
	if err != nil {
		return nil, -1, errors.Join(fmt.Errorf("create a ring: %w", err), unix.Close(pair[0]), unix.Close(pair[1]))
	}
	return &Bell{va: r.VA, size: r.Size, arm: r.Arm, memory: memory, later: later, fd: pair[0]}, pair[1], nil
}

// Strike wakes the process if the ring is armed, and reports whether it was. It may sleep in the touch
// of ARM.
func (b *Bell) Strike() bool {
	armed := b.memory == nil || b.memory.Disarm(b.arm)
	if armed {
		b.Wake()
	}
	return armed
}

var wake = [1]byte{1}

// Wake wakes the process whether or not the ring is armed. It does not sleep.
func (b *Bell) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.fd < 0:
	case b.load.apart.IsZero() && !b.load.send(b.fd):
	case !b.due:
		b.due = true
		b.later(b.late)
	}
}

// sendPause is how long pfd waits for memory. Defined by this project.
const sendPause = time.Millisecond

// late wakes the process for Wake, on another goroutine.
func (b *Bell) late() {
	b.mu.Lock()
	b.due = false
	fd := b.fd
	if fd < 0 {
		b.mu.Unlock()
		return
	}
	if time.Now().After(b.load.apart) {
		b.load = load{}
	}
	b.sends.Add(1)
	defer b.sends.Done()
	b.mu.Unlock()
	for send(fd) && b.open() {
		time.Sleep(sendPause)
	}
}

func (b *Bell) open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fd >= 0
}

// send wakes the process and takes the time, as the function send does. A send that was only interrupted
// is not held against the process.
func (l *load) send(fd int) (again bool) {
	began, used := time.Now(), time.Duration(0)
	if l.suspect {
		used = processorTime()
	}
	again = send(fd)
	long := time.Since(began) > longSend
	if long && l.suspect && processorTime()-used > longSend {
		l.apart = began.Add(apartTime)
	}
	l.suspect = long
	return again
}

// processorTime returns the processor's time of this thread, 0 if the kernel does not tell it.
func processorTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// send makes a ring readable. It reports whether the kernel has no memory for that at this moment.
func send(fd int) (again bool) {
	err := unix.Send(fd, wake[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	// EAGAIN: the socket is full, and so readable. After any other error nobody waits.
	return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR)
}

// Close closes pfd's end.
func (b *Bell) Close() error {
	b.mu.Lock()
	fd := b.fd
	b.fd = -1
	b.mu.Unlock()
	b.sends.Wait()
	if fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

func (b *Bell) end() device.VA { return b.va + device.VA(b.size) }

// Bells are the rings of one process. They belong to the goroutine that owns its node.
type Bells struct {
	words []*Bell // by address; they do not overlap
	mail  []*Bell // of the mailbox, by number
}

// list returns the list for a range.
func (s *Bells) list(va device.VA) *[]*Bell {
	if va == 0 {
		return &s.mail
	}
	return &s.words
}

// find returns where the ring of a range is, or belongs, in its list.
func (s *Bells) find(va device.VA, size uint64) (at int, there bool) {
	if va == 0 {
		return slices.BinarySearchFunc(s.mail, size, func(b *Bell, n uint64) int { return cmp.Compare(b.size, n) })
	}
	return slices.BinarySearchFunc(s.words, va, func(b *Bell, va device.VA) int { return cmp.Compare(b.va, va) })
}

// Add adds a ring. It returns false if it overlaps another one: completion words then wake one ring,
// and a write costs the same with many rings as with one.
func (s *Bells) Add(b *Bell) bool {
	i, there := s.find(b.va, b.size)
	if there || b.va != 0 && (i > 0 && s.words[i-1].end() > b.va || i < len(s.words) && s.words[i].va < b.end()) {
		return false
	}
	l := s.list(b.va)
	*l = slices.Insert(*l, i, b)
	return true
}

// Remove removes the ring of exactly this range and returns it; nil if there is none.
func (s *Bells) Remove(va device.VA, size uint64) *Bell {
	l := s.list(va)
	i, there := s.find(va, size)
	if !there || (*l)[i].size != size {
		return nil
	}
	b := (*l)[i]
	*l = slices.Delete(*l, i, i+1)
	return b
}

// Words returns the rings for completion words at va: those that watch them, or else those of the
// mailbox. The slice is valid until Add or Remove.
func (s *Bells) Words(va device.VA) []*Bell {
	i, _ := s.find(max(va, 1), 0)
	if i > 0 && s.words[i-1].end() > va {
		i--
	}
	j := i
	for j < len(s.words) && s.words[j].va < va+wordsSize {
		j++
	}
	if i == j {
		return s.mail
	}
	return s.words[i:j]
}

// Mail returns the rings of the mailbox. The slice is valid until Add or Remove.
func (s *Bells) Mail() []*Bell { return s.mail }

// WakeAll wakes the process by all rings, for a device that does not tell which words it has written.
func (s *Bells) WakeAll() {
	WakeAll(s.words)
	WakeAll(s.mail)
}

// WakeAll wakes a process by some of its rings.
func WakeAll(list []*Bell) {
	for _, b := range list {
		b.Wake()
	}
}

// Len returns how many rings there are.
func (s *Bells) Len() int { return len(s.words) + len(s.mail) }

// Close closes all rings, and returns how many there were.
func (s *Bells) Close() (n int) {
	n = s.Len()
	for _, b := range slices.Concat(s.words, s.mail) {
		_ = b.Close() // it cannot fail: the socket has sent all that it will
	}
	s.words, s.mail = nil, nil
	return n
}
