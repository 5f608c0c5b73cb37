package user

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// guardDelay is how long a write to an eventfd may block; it is defined by this project. A write
// that does not block takes some 300 ns.
const guardDelay = 10 * time.Millisecond

var eventfdOne = func() []byte { return order.AppendUint64(nil, 1) }()

// signaller signals eventfds that the peer has, too. A peer can fill one and make it block its
// writers. guard then drains it and disconnects the peer (stuck), so that others are delayed only
// for a moment.
type signaller struct {
	guard *time.Timer
	stuck func()

	one     sync.Mutex // held for a signal
	mu      sync.Mutex
	writing int // the eventfd being written, or -1
	thread  int // the thread that writes it
}

func newSignaller(stuck func()) *signaller {
	s := &signaller{stuck: stuck, writing: -1}
	s.guard = time.AfterFunc(time.Hour, s.rescue)
	s.guard.Stop()
	return s
}

// signal adds one to an eventfd. It does not block for longer than a few guardDelays, whatever
// the peer does to the eventfd.
func (s *signaller) signal(fd int) {
	if fd < 0 {
		return
	}
	s.one.Lock()
	defer s.one.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s.mu.Lock()
	s.writing, s.thread = fd, unix.Gettid()
	s.mu.Unlock()
	s.guard.Reset(guardDelay)
	for {
		// EAGAIN: the counter is full, so the peer has been signalled already.
		if _, err := unix.Write(fd, eventfdOne); err != unix.EINTR {
			break
		}
	}
	s.guard.Stop()
	s.mu.Lock()
	s.writing = -1
	s.mu.Unlock()
}

// rescue unblocks a write that has taken long. If the eventfd is full, rescue drains it; if not,
// the write will finish, and the machine is just busy. Threads of the peer may be waiting to fill
// it again, and come first. So rescue also interrupts the write by a signal that the runtime
// handles: the write then restarts and finds that it must not block.
func (s *signaller) rescue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing < 0 {
		return
	}
	p := []unix.PollFd{{Fd: int32(s.writing), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, 0); err == nil && n == 0 {
		_ = unix.SetNonblock(s.writing, true) // the next rescue tries again
		drain(s.writing)
		_ = unix.Tgkill(os.Getpid(), s.thread, unix.SIGURG)
		s.stuck()
	}
	s.guard.Reset(guardDelay)
}

// drain reads an eventfd's count without blocking, whatever the peer has set O_NONBLOCK to. It
// reports whether the count was above zero.
func drain(fd int) bool {
	var b [8]byte
	n, err := unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
	return err == nil && n == len(b)
}

// isEventFD reports whether a descriptor is an eventfd. Nothing else of a peer may be written to,
// since it could block for good.
func isEventFD(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && name == "anon_inode:[eventfd]"
}
