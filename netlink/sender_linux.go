package netlink

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// open creates a NETLINK_USERSOCK socket with a port id that the kernel chooses.
func open() (fd int, port uint32, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_USERSOCK)
	if err != nil {
		return -1, 0, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return -1, 0, os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return -1, 0, os.NewSyscallError("getsockname", err)
	}
	nl, ok := sa.(*unix.SockaddrNetlink)
	if !ok {
		unix.Close(fd)
		return -1, 0, errors.New("getsockname: not a netlink address")
	}
	return fd, nl.Pid, nil
}

// Sender sends fault messages to the sockets of processes. One goroutine at a time may use it;
// Counters is safe for concurrent use.
type Sender struct {
	fd   int
	port uint32
	seq  uint32
	to   unix.SockaddrNetlink
	buf  []byte

	sent, full, noReceiver, failed atomic.Uint64
}

// SenderCounters counts the messages by result.
type SenderCounters struct{ Sent, Full, NoReceiver, Failed uint64 }

// OpenSender creates pfd's own socket.
func OpenSender() (*Sender, error) {
	fd, port, err := open()
	if err != nil {
		return nil, fmt.Errorf("open netlink sender: %w", err)
	}
	return &Sender{
		fd: fd, port: port,
		to:  unix.SockaddrNetlink{Family: unix.AF_NETLINK},
		buf: make([]byte, 0, messageSize),
	}, nil
}

// Port returns the sender's port id, which receivers learn at Attach.
func (s *Sender) Port() uint32 { return s.port }

// Last returns the number (nlmsg_seq) of the last message that Send made, never 0.
func (s *Sender) Last() uint32 { return s.seq }

// Counters returns the counters.
func (s *Sender) Counters() SenderCounters {
	return SenderCounters{
		Sent: s.sent.Load(), Full: s.full.Load(),
		NoReceiver: s.noReceiver.Load(), Failed: s.failed.Load(),
	}
}

// Send sends f to the socket with the given port id. It never blocks: a blocking send to a process
// that does not read would hang for ever. Errors are ErrFull, ErrNoReceiver (also for port 0, the
// kernel's), ErrRange, ErrClosed, or the system's. It allocates only an error's text.
func (s *Sender) Send(port uint32, f Fault) error {
	if s.fd < 0 {
		return ErrClosed
	}
	if port == 0 {
		s.noReceiver.Add(1)
		return ErrNoReceiver
	}
	if s.seq++; s.seq == 0 {
		s.seq = 1 // 0 stands for a process that has served no message
	}
	b, err := AppendMessage(s.buf[:0], &f, s.seq, s.port)
	if err != nil {
		s.failed.Add(1)
		return err
	}
	s.to.Pid = port
	for {
		err = unix.Sendto(s.fd, b, unix.MSG_DONTWAIT, &s.to)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		s.sent.Add(1)
		return nil
	case errors.Is(err, unix.EAGAIN):
		s.full.Add(1)
		return ErrFull
	case errors.Is(err, unix.ECONNREFUSED):
		s.noReceiver.Add(1)
		return ErrNoReceiver
	}
	s.failed.Add(1)
	return fmt.Errorf("send fault to netlink port %d: %w", port, os.NewSyscallError("sendto", err))
}

// Close closes the socket; a second Close does nothing.
func (s *Sender) Close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}
