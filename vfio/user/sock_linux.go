package user

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// recvFDs is how many descriptors one receive takes (ours; more than any limit
// that is announced, so that too many are seen and refused rather than lost).
const recvFDs = 32

// socket is one end of a stream socket with descriptors in its messages. It is
// blocking: a goroutine that waits in the kernel wakes in one step, where the
// runtime's poller takes three system calls. One goroutine receives at a time,
// and one sends; shutdown may be called by any.
type socket struct {
	fd int

	mu     sync.Mutex // guards closed against fd's reuse
	closed bool

	rx, tx       unix.Msghdr
	rxIov, txIov unix.Iovec
	oob          [24 + 4*recvFDs]byte // one control message: header 16, descriptors, slack
}

func newSocket(fd int) *socket { return &socket{fd: fd} }

// timeouts bounds what a blocking send and receive may take; zero is for ever.
func (s *socket) timeouts(recv, send time.Duration) error {
	for opt, d := range map[int]time.Duration{unix.SO_RCVTIMEO: recv, unix.SO_SNDTIMEO: send} {
		tv := unix.NsecToTimeval(int64(d))
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, opt, &tv); err != nil {
			return fmt.Errorf("socket timeouts: %w", err)
		}
	}
	return nil
}

// shutdown ends the connection: whoever waits on it wakes. The descriptor stays
// until close.
func (s *socket) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		_ = unix.Shutdown(s.fd, unix.SHUT_RDWR) // ENOTCONN: it is over already
	}
}

// close closes the descriptor. Nobody may be receiving or sending any more.
func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		closeFDs([]int{s.fd})
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing was written through it
	}
}

// How often a call is made that the kernel has no memory for, and how long apart
// (ours): a device must not be lost for that.
const (
	shortTries = 5
	shortPause = time.Millisecond
)

// scarce tells whether a call is to be made again because the kernel was short of
// memory, and waits a while before. Nothing was sent or received then.
func scarce(errno unix.Errno, tries int) bool {
	if errno != unix.ENOMEM && errno != unix.ENOBUFS || tries > shortTries {
		return false
	}
	time.Sleep(shortPause)
	return true
}

// errWouldBlock says that a receive that must not wait found nothing.
var errWouldBlock = errors.New("nothing to receive")

// recv receives up to len(p) bytes, at least one, and the descriptors that came
// with them. The end of the stream is ErrGone; with unix.MSG_DONTWAIT nothing
// there is errWouldBlock; so is the end of a timeout. More descriptors than the
// kernel could pass are an error after those received were closed.
func (s *socket) recv(p []byte, flags int) (n int, fds []int, err error) {
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
		fds = rights(s.oob[:s.rx.Controllen])
	}
	if s.rx.Flags&unix.MSG_CTRUNC != 0 {
		closeFDs(fds)
		return n, nil, fmt.Errorf("%w: more descriptors in one message than can be taken", ErrMalformed)
	}
	if n == 0 {
		closeFDs(fds)
		return 0, nil, fmt.Errorf("%w: connection closed", ErrGone)
	}
	return n, fds, nil
}

// rights takes the descriptors out of control messages.
func rights(oob []byte) []int {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// send sends the whole of p, with the descriptors on its first byte. A peer
// that does not read within the timeout is gone.
func (s *socket) send(p []byte, fds []int) error {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	for tries := 0; len(p) > 0; {
		s.txIov.Base = &p[0]
		s.txIov.SetLen(len(p))
		s.tx.Iov = &s.txIov
		s.tx.SetIovlen(1)
		s.tx.Control = nil
		if len(control) > 0 {
			s.tx.Control = &control[0]
		}
		s.tx.SetControllen(len(control))
		r, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.tx)), unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			p, control = p[r:], nil
		case unix.EINTR:
		case unix.EAGAIN:
			return fmt.Errorf("%w: %w: the peer does not read", ErrGone, ErrTimeout)
		default:
			if tries++; !scarce(errno, tries) {
				return fmt.Errorf("%w: send: %w", ErrGone, errno)
			}
		}
	}
	return nil
}

// poll waits until the socket has something to receive or the deadline is past.
func (s *socket) poll(deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("%w: %w", ErrGone, ErrTimeout)
		}
		p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int((left+time.Millisecond-1)/time.Millisecond))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("%w: poll: %w", ErrGone, err)
		case n > 0:
			return nil
		}
	}
}

// spinRecv receives like recv, but looks for up to d before it sleeps: a wake-up
// costs ten times a look.
func (s *socket) spinRecv(p []byte, d time.Duration) (int, []int, error) {
	if d > 0 {
		for start := time.Now(); ; {
			n, fds, err := s.recv(p, unix.MSG_DONTWAIT)
			if !errors.Is(err, errWouldBlock) || time.Since(start) >= d {
				if errors.Is(err, errWouldBlock) {
					break
				}
				return n, fds, err
			}
		}
	}
	return s.recv(p, 0)
}

// pair makes a connected pair of sockets.
func pair() (ours *socket, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socket pair: %w", err)
	}
	return newSocket(fds[0]), fds[1], nil
}

// listen makes a listening socket that only the user can connect to. A socket
// file left behind by a server that died is replaced; a live one is not.
func listen(path string) (int, error) {
	addr := &unix.SockaddrUnix{Name: path}
	if fd, err := dial(path); err == nil {
		closeFDs([]int{fd})
		return -1, fmt.Errorf("listen on %s: a server is there already: %w", path, unix.EADDRINUSE)
	} else if errors.Is(err, unix.ECONNREFUSED) && isSocket(path) { // so says any file to a connect
		if err := unix.Unlink(path); err != nil {
			return -1, fmt.Errorf("listen: remove the dead socket %s: %w", path, err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The mode of the descriptor becomes the file's at bind, so there is no
	// moment in which others may connect.
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = unix.Bind(fd, addr)
	}
	if err == nil {
		err = unix.Listen(fd, 8)
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

func dial(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		closeFDs([]int{fd})
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	return fd, nil
}
