package user

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/uids"
)

// recvFDs is how many descriptors one receive accepts; it is defined by this project. It is above
// any limit that is announced, so that a peer's excess descriptors are detected and refused
// rather than lost.
const recvFDs = 32

// socket is one end of a stream socket with descriptors in its messages. It is blocking: a
// goroutine that waits in the kernel wakes in one step, where the runtime's poller takes three
// system calls. One goroutine receives at a time, and one sends; shutdown is safe for concurrent
// use.
type socket struct {
	fd int

	mu     sync.Mutex // guards closed against fd's reuse
	closed bool

	*closer // of descriptors that the peer sends

	sendTime time.Duration // for the whole of a send; 0: no limit

	rx, tx       unix.Msghdr
	rxIov, txIov unix.Iovec
	oob          [24 + 4*recvFDs]byte // one control message: header 16, descriptors, slack
}

func newSocket(fd int) *socket { return &socket{fd: fd, closer: new(closer)} }

// timeouts bounds a blocking receive and the whole of a send; zero means no limit.
func (s *socket) timeouts(recv, send time.Duration) error {
	tv := unix.NsecToTimeval(int64(recv))
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("socket timeouts: %w", err)
	}
	s.sendTime = send
	return nil
}

// shutdown ends the connection and wakes the goroutines that wait on it. The descriptor stays
// open until close.
func (s *socket) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR) // ENOTCONN: it is shut down already
	}
}

// hungUp reports whether the connection is over: the peer closed it, or shutdown was called.
func (s *socket) hungUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}

// peer identifies the process that connected, if the connection is not over.
func (s *socket) peer() (pid int, program string, ok bool) {
	if s.hungUp() {
		return 0, "", false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, "", false
	}
	cred, err := sockets.Peer(s.fd)
	if err != nil {
		return 0, "", false
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cred.Pid)) // "": the process has ended, or is in another namespace
	return int(cred.Pid), strings.TrimSpace(string(comm)), true
}

// close closes the socket and the descriptors that the peer sent. It waits for that as long as
// for a send. No goroutine may be receiving or sending.
func (s *socket) close() { s.closeIn(s.sendTime) }

// closeIn is like close, with another time limit; zero means none.
func (s *socket) closeIn(most time.Duration) {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.shed([]int{s.fd}) // also closes descriptors that were sent and never received
	}
	s.mu.Unlock()
	s.wait(most)
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing was written through it
	}
}

// A system call for which the kernel has no memory is retried, so that a device is not lost for
// that. Values below are defined by this project.
const (
	shortTries = 5
	shortPause = time.Millisecond
)

// scarce reports whether to retry a call because the kernel was short of memory. It sleeps before
// it returns true. Nothing was sent or received then.
func scarce(errno unix.Errno, tries int) bool {
	if errno != unix.ENOMEM && errno != unix.ENOBUFS || tries > shortTries {
		return false
	}
	time.Sleep(shortPause)
	return true
}

// errWouldBlock reports that a receive that must not wait found nothing.
var errWouldBlock = errors.New("nothing to receive")

// recv receives up to len(p) bytes, at least one, and the descriptors that came with them. It
// returns ErrGone at the end of the stream, and errWouldBlock on a time-out or, with
// unix.MSG_DONTWAIT, if nothing is there. More descriptors than the kernel can pass are an error;
// those received are closed. It first waits until all descriptors that were shed are closed, so
// that they stay few.
func (s *socket) recv(p []byte, flags int) (n int, fds []int, err error) {
	if !s.wait(s.sendTime) {
		return 0, nil, fmt.Errorf("%w: a descriptor that the peer sent does not close: %w", ErrGone, ErrTimeout)
	}
	s.rxIov.Base = &p[0]
	s.rxIov.SetLen(len(p))
	for tries := 0; ; {
		s.rx.Iov = &s.rxIov
		s.rx.SetIovlen(1)
		s.rx.Control = &s.oob[0]
		s.rx.SetControllen(len(s.oob))
		s.rx.Flags = 0
		r, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.rx)), uintptr(flags|unix.MSG_CMSG_CLOEXEC))
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0, nil, errWouldBlock
		default:
			if tries++; scarce(errno, tries) {
				continue
			}
			return 0, nil, fmt.Errorf("%w: receive: %w", ErrGone, errno)
		}
		n = int(r)
		break
	}
	if s.rx.Controllen != 0 {
		fds, _ = sockets.Rights(s.oob[:s.rx.Controllen]) // the kernel's own data, always well formed
	}
	if err := sockets.Lost(int(s.rx.Flags), len(fds), recvFDs); err != nil {
		s.shed(fds)
		return n, nil, err
	}
	if s.rx.Flags&unix.MSG_CTRUNC != 0 {
		s.shed(fds)
		return n, nil, fmt.Errorf("%w: more descriptors in one message than can be taken", ErrMalformed)
	}
	if n == 0 {
		s.shed(fds)
		return 0, nil, fmt.Errorf("%w: connection closed", ErrGone)
	}
	return n, fds, nil
}

// send sends the whole of p, with the descriptors on its first byte. It returns ErrGone if the
// peer does not read all of it in time.
func (s *socket) send(p []byte, fds []int) error {
	by := time.Time{}
	for len(p) > 0 {
		n, err := s.sendNow(p, fds)
		if err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if n > 0 {
			fds = nil
		}
		if by.IsZero() && s.sendTime > 0 {
			by = time.Now().Add(s.sendTime)
		}
		if err := s.poll(unix.POLLOUT, by); err != nil {
			return fmt.Errorf("%w: the peer does not read", err)
		}
	}
	return nil
}

// sendNow sends as much of p as the socket accepts without blocking, with the descriptors on its
// first byte.
func (s *socket) sendNow(p []byte, fds []int) (sent int, err error) {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	for tries := 0; sent < len(p); {
		s.txIov.Base = &p[sent]
		s.txIov.SetLen(len(p) - sent)
		s.tx.Iov = &s.txIov
		s.tx.SetIovlen(1)
		s.tx.Control = nil
		if len(control) > 0 {
			s.tx.Control = &control[0]
		}
		s.tx.SetControllen(len(control))
		r, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.tx)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch errno {
		case 0:
			sent, control = sent+int(r), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return sent, nil
		default:
			if tries++; !scarce(errno, tries) {
				return sent, fmt.Errorf("%w: send: %w", ErrGone, errno)
			}
		}
	}
	return sent, nil
}

// poll waits until the socket is ready for events, or until by; a zero time means no limit.
func (s *socket) poll(events int16, by time.Time) error {
	for {
		wait := -1
		if !by.IsZero() {
			left := time.Until(by)
			if left <= 0 {
				return fmt.Errorf("%w: %w", ErrGone, ErrTimeout)
			}
			wait = int(min((left+time.Millisecond-1)/time.Millisecond, 1<<30))
		}
		p := []unix.PollFd{{Fd: int32(s.fd), Events: events}}
		n, err := unix.Poll(p, wait)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("%w: poll: %w", ErrGone, err)
		case n > 0:
			return nil
		}
	}
}

// pair makes a connected pair of sockets.
func pair() (ours *socket, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socket pair: %w", err)
	}
	return newSocket(fds[0]), fds[1], nil
}

// backlog is how many clients wait to be accepted; it is defined by this project.
const backlog = 128

// listen makes a listening socket to which only the user can connect. It replaces a socket file
// that a dead server left behind, but not that of a live server.
func listen(path string) (int, error) {
	addr := &unix.SockaddrUnix{Name: path}
	if fd, err := dial(path); err == nil {
		closeFDs([]int{fd})
		return -1, fmt.Errorf("listen on %s: a server is there already: %w", path, unix.EADDRINUSE)
	} else if errors.Is(err, unix.ECONNREFUSED) && isSocket(path) { // connect returns ECONNREFUSED for any file
		if err := unix.Unlink(path); err != nil {
			return -1, fmt.Errorf("listen: remove the dead socket %s: %w", path, err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The mode of the descriptor becomes the file's at bind, so that others can never connect.
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = unix.Bind(fd, addr)
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		closeFDs([]int{fd})
		return -1, fmt.Errorf("listen on %s: %w", path, err)
	}
	return fd, nil
}

func isSocket(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// dial connects to a server, which must run as root, the caller's own user, or one of trust,
// because the server controls what its client maps.
func dial(path string, trust ...uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		closeFDs([]int{fd})
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	cred, err := sockets.Peer(fd)
	if err == nil && !uids.Trusted(cred.Uid, uint32(unix.Geteuid()), trust) {
		err = fmt.Errorf("%w: uid %d", ErrStranger, cred.Uid)
	}
	if err != nil {
		closeFDs([]int{fd})
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	return fd, nil
}

// address returns the address of bytes of this process, for a system call that takes a number.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
