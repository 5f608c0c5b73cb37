package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Times that a peer is given (ours).
const (
	// HandshakeTimeout is how long either side waits for the other's part of
	// the handshake.
	HandshakeTimeout = 5 * time.Second
	// sendTimeout is how long a message may wait for a peer that does not read.
	sendTimeout = time.Second
)

// maxFDs is the number of descriptors that a message may carry; the kernel
// throws further ones away (ours).
const maxFDs = 4

// ErrNoDaemon says that no pfd listens.
var ErrNoDaemon = errors.New("no pfd answers")

// Peer is the process at the other end, as the kernel names it.
type Peer struct {
	PID      int
	UID, GID uint32
	// PIDFD refers to the process itself and not to its number. It is the
	// connection's and is closed with it; -1 on the process's side.
	PIDFD int
}

// Conn is one connection of an attachment. Receiving and sending may go on at
// the same time, each by one goroutine; Close may be called at any time and
// ends both.
type Conn struct {
	c     *net.UnixConn
	peer  Peer
	once  sync.Once
	close error
}

func newConn(c *net.UnixConn, withPIDFD bool) (*Conn, error) {
	conn := &Conn{c: c, peer: Peer{PIDFD: -1}}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("asking for the peer's credentials: %w", err)
	}
	var sockErr error
	if err := raw.Control(func(fd uintptr) { sockErr = conn.peer.read(int(fd), withPIDFD) }); err != nil {
		return nil, fmt.Errorf("asking for the peer's credentials: %w", err)
	}
	if sockErr != nil {
		return nil, fmt.Errorf("asking for the peer's credentials: %w", sockErr)
	}
	return conn, nil
}

func (p *Peer) read(fd int, withPIDFD bool) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	p.PID, p.UID, p.GID = int(cred.Pid), cred.Uid, cred.Gid
	if !withPIDFD {
		return nil
	}
	// SO_PEERPIDFD came with Linux 6.5. There is no safe way without it: a
	// pidfd opened by number may be that of another process by then.
	p.PIDFD, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		p.PIDFD = -1
		return fmt.Errorf("%w: SO_PEERPIDFD needs Linux 6.5 or newer (exanetctl doctor)", errors.ErrUnsupported)
	}
	if err != nil {
		p.PIDFD = -1
		return os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
	}
	return nil
}

// Peer gives the process at the other end.
func (c *Conn) Peer() Peer { return c.peer }

// Close closes the connection, and the peer's pidfd with it. It may be called
// again and gives the same answer.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.close = c.c.Close()
		if c.peer.PIDFD >= 0 {
			c.close = errors.Join(c.close, os.NewSyscallError("close", unix.Close(c.peer.PIDFD)))
		}
	})
	return c.close
}

// CloseWrite says that nothing more will be sent; the peer reads the end of the
// connection and can still send.
func (c *Conn) CloseWrite() error { return c.c.CloseWrite() }

// Send sends one message with descriptors, which stay the caller's. A peer that
// does not read costs a second at most, then the error matches
// os.ErrDeadlineExceeded.
func (c *Conn) Send(msg []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := c.c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("sending to the attachment's peer: %w", err)
	}
	err := patiently(func() error {
		_, _, err := c.c.WriteMsgUnix(msg, oob, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("sending to the attachment's peer: %w", err)
	}
	return nil
}

// How often a message is tried that the kernel has no memory for, and how long
// apart (ours).
const (
	shortTries = 5
	shortPause = time.Millisecond
)

// patiently does f again where the kernel was short of something for a moment: an
// attachment must not end for that. A message that was not sent, or not received,
// as a whole was not at all.
func patiently(f func() error) error {
	err := f()
	for range shortTries {
		if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(shortPause)
		err = f()
	}
	return err
}

// Receive reads one message into buf, of at least MaxMessage bytes, and gives
// its size and the descriptors that came with it, which are the caller's. It
// ends when ctx does. The peer's orderly end is io.EOF. A message that is too
// large or carries too many descriptors matches ErrMessage; what came with it
// has been closed.
func (c *Conn) Receive(ctx context.Context, buf []byte) (int, Descriptors, error) {
	// No deadline of an earlier call may be left; and none of this one may come
	// after it.
	if err := c.c.SetReadDeadline(time.Time{}); err != nil {
		return 0, nil, fmt.Errorf("reading from the attachment's peer: %w", err)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.c.SetReadDeadline(time.Unix(1, 0)) // fails on a closed connection, whose read has ended
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	var oob [256]byte // of which maxFDs descriptors and no more are accepted
	var n, oobn, flags int
	err := patiently(func() (err error) {
		n, oobn, flags, _, err = c.c.ReadMsgUnix(buf, oob[:unix.CmsgSpace(4*maxFDs)])
		return err
	})
	fds, fdErr := rights(oob[:oobn])
	switch {
	case err != nil:
	case fdErr != nil:
		err = fdErr
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("%w: more than %d descriptors", ErrMessage, maxFDs)
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: more than %d bytes", ErrMessage, len(buf))
	}
	if err == nil {
		return n, fds, nil
	}
	fds.Close()
	if ctx.Err() != nil {
		return 0, nil, fmt.Errorf("reading from the attachment's peer: %w", ctx.Err())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return 0, nil, io.EOF // a SEQPACKET peer that leaves with unread data is a reset
	}
	return 0, nil, fmt.Errorf("reading from the attachment's peer: %w", err)
}

// rights gives all descriptors in control data. Whatever it gives is open, also
// with an error.
func rights(oob []byte) (Descriptors, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control data: %w", ErrMessage, err)
	}
	var fds Descriptors
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, fmt.Errorf("%w: control data: %w", ErrMessage, err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
