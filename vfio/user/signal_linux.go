package user

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// guardDelay is how long a write to an eventfd may block (ours; a write that
// does not block takes some 300 ns).
const guardDelay = 10 * time.Millisecond

var eventfdOne = func() []byte { return order.AppendUint64(nil, 1) }()

// signaller signals eventfds that the peer has, too. A peer can fill one and make it
// block whoever writes to it. guard drains it then and has the peer thrown out
// (stuck): nobody else loses more than a moment.
type signaller struct {
	guard *time.Timer
	stuck func()

	one     sync.Mutex // held for a signal
	mu      sync.Mutex
	writing int // the eventfd that is being written, or -1
	thread  int // and by whom
}

func newSignaller(stuck func()) *signaller {
	s := &signaller{stuck: stuck, writing: -1}
	s.guard = time.AfterFunc(time.Hour, s.rescue)
	s.guard.Stop()
	return s
}

// signal adds one to an eventfd. It does not block for longer than a few
// guardDelays, whatever the peer does with it.
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
		// EAGAIN: the counter is full, so the peer is signalled already.
		if _, err := unix.Write(fd, eventfdOne); err != unix.EINTR {
			break
		}
	}
	s.guard.Stop()
	s.mu.Lock()
	s.writing = -1
	s.mu.Unlock()
}

// rescue looks after a write that has taken long. If the eventfd is full, it is
// emptied; if not, the write is done or will be, and the machine is just busy. Threads
// of the peer's may wait to fill it again, and come first: by a signal, which the runtime
// is used to, the write begins anew and finds that it must not block.
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

// drain takes an eventfd's count without ever blocking, be its O_NONBLOCK what
// the peer wants; it says whether there was one.
func drain(fd int) bool {
	var b [8]byte
	n, err := unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT)
	return err == nil && n == len(b)
}

// isEventFD says whether a descriptor is an eventfd: nothing else of a peer's may be
// written to, since it could block for good.
func isEventFD(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && name == "anon_inode:[eventfd]"
}
