package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/keeper"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/sockets"
)

// Times that a peer has. Values below are defined by this project.
const (
	// HandshakeTimeout is how long either side waits for the other's part of the handshake, unless
	// its context has a deadline.
	HandshakeTimeout = 5 * time.Second
	// sendTimeout is how long one of Send's two tries may wait for a peer that does not read.
	sendTimeout = time.Second
)

// maxFDs is how many descriptors a message may carry; the kernel discards further ones. Defined by
// this project.
const maxFDs = 4

var (
	// ErrNoDaemon says that no pfd listens.
	ErrNoDaemon = errors.New("no pfd answers")
	// ErrStranger says that another user serves the socket.
	ErrStranger = errors.New("another user serves the socket")
)

// Peer is the process at the other end, as the kernel reports it.
type Peer struct {
	PID      int
	UID, GID uint32
	// PIDFD refers to the process itself and not to its number. The connection owns it; -1 on the
	// process's side.
	PIDFD int
	// Keeper is a pidfd of the process's keeper, which came with MAPPED. The connection owns it;
	// -1 before.
	Keeper int
}

// Conn is one connection of an attachment. One goroutine may receive while another sends; Close
// may be called at any time and ends both.
type Conn struct {
	c      *net.UnixConn
	peer   Peer
	takes  bool           // whether it accepts descriptors
	pages  *Pages         // mapped by Handshake
	keeper *keeper.Keeper // on the process's side, started by Handshake
	lent   *keeper.Keeper // the same for the helper, if pfd asked for one
	helper *os.Process
	trust  []uint32       // users besides root and this process's own, from Dial
	held   sync.WaitGroup // goroutines that the peer can keep in the kernel indefinitely
	once   sync.Once
	close  error
}

// newConn returns a connection of pfd's side, or of the library's, which accepts the descriptors
// that pfd sends.
func newConn(c *net.UnixConn, pfd bool) (*Conn, error) {
	conn := &Conn{c: c, peer: Peer{PIDFD: -1, Keeper: -1}, takes: !pfd}
	if err := sockets.Control(c, func(fd int) error { return conn.peer.read(fd, pfd) }); err != nil {
		return nil, fmt.Errorf("get the peer's credentials: %w", err)
	}
	return conn, nil
}

func (p *Peer) read(fd int, withPIDFD bool) error {
	cred, err := sockets.Peer(fd)
	if err != nil {
		return err
	}
	p.PID, p.UID, p.GID = int(cred.Pid), cred.Uid, cred.Gid
	if !withPIDFD {
		return nil
	}
	// SO_PEERPIDFD came with Linux 6.5. There is no safe way without it: the number may have been
	// reused before a pidfd is opened by it.
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

// Peer returns the process at the other end.
func (c *Conn) Peer() Peer { return c.peer }

// TakeDescriptors makes the connection accept descriptors from now on. pfd's side accepts none
// before, because the process that created a descriptor can delay its close indefinitely (a socket
// that lingers, a file of FUSE).
func (c *Conn) TakeDescriptors() error { return c.passRights(true) }

func (c *Conn) passRights(on bool) error {
	err := sockets.Control(c.c, func(fd int) error { return sockets.PassRights(fd, on) })
	if err != nil {
		err = fmt.Errorf("accept descriptors: %w", err)
	}
	c.takes = on && err == nil
	return err
}

// Close closes the connection, and with it the peer's pidfds, or the process's keeper and helper.
// If the helper cannot end, the error matches ErrHelper: its calls in progress may still access
// the process's memory. Close may be called again and returns the same result.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.close = c.c.Close()
		for _, fd := range [...]int{c.peer.PIDFD, c.peer.Keeper} {
			if fd >= 0 {
				c.close = errors.Join(c.close, os.NewSyscallError("close", unix.Close(fd)))
			}
		}
		for _, k := range [...]*keeper.Keeper{c.keeper, c.lent} {
			if k != nil {
				c.close = errors.Join(c.close, k.Close())
			}
		}
		c.close = errors.Join(c.close, c.reapHelper())
	})
	return c.close
}

// CloseWrite shuts down sending; the peer reads the end of the connection and can still send.
func (c *Conn) CloseWrite() error { return c.c.CloseWrite() }

// shutdown shuts the connection down both ways without closing it: messages sent before can still
// be read.
func (c *Conn) shutdown() error {
	err := sockets.Control(c.c, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	if err != nil && !errors.Is(err, unix.ENOTCONN) { // ENOTCONN: it has ended already
		return fmt.Errorf("end an attachment's connection: shutdown: %w", err)
	}
	return nil
}

// Send sends one message with descriptors, which the caller still owns. If the peer does not read,
// Send returns after two seconds at most, with an error that matches os.ErrDeadlineExceeded.
func (c *Conn) Send(msg []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var err error
	// If this process does not run for that long, the first deadline passes before the kernel
	// tries to send.
	for range 2 {
		if err = c.c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			break
		}
		err = patiently(func() error {
			_, _, err := c.c.WriteMsgUnix(msg, oob, nil)
			return err
		})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("send to the attachment's peer: %w", limits.Explain(err))
	}
	return nil
}

// How often a message is tried for which the kernel has no memory, and how far apart. Values below
// are defined by this project.
const (
	shortTries = 5
	shortPause = time.Millisecond
)

// patiently retries f if the kernel lacks a resource for a moment: that must not end an
// attachment. A message is sent or received as a whole or not at all.
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

// received is the result of one call of receive.
type received struct {
	n   int
	fds Descriptors
	err error
}

// abandonTime is how long Receive waits, after its context has ended, for a call that is stuck in
// the kernel. Defined by this project.
const abandonTime = 100 * time.Millisecond

// Receive reads one message into buf, of at least MaxMessage bytes, until ctx ends. It returns the
// message's size and its descriptors, which the caller owns. The peer's orderly end is io.EOF. If
// the message is too large or carries too many descriptors, the error matches ErrMessage and its
// descriptors have been closed. If this process has no room for the descriptors, the error matches
// sockets.ErrDescriptors and the message is returned. If the connection does not accept
// descriptors, the kernel closes them, and a single -1 stands for them.
//
// Before Linux 6.16 a peer may make the call last for ever: Receive then returns without it, and
// the connection is unusable.
func (c *Conn) Receive(ctx context.Context, buf []byte) (int, Descriptors, error) {
	// Clear a deadline of an earlier call before this call begins.
	if err := c.c.SetReadDeadline(time.Time{}); err != nil {
		return 0, nil, fmt.Errorf("read from the attachment's peer: %w", err)
	}
	got, own := make(chan received, 1), make([]byte, len(buf))
	c.held.Go(func() { got <- c.receive(own) })
	var r received
	select {
	case r = <-got:
	case <-ctx.Done():
		_ = c.c.SetReadDeadline(time.Unix(1, 0)) // fails on a closed connection, whose read has ended
		select {
		case r = <-got:
		case <-time.After(abandonTime):
			c.held.Go(func() { (<-got).fds.Close() })
			r.err = ctx.Err()
		}
	}
	if r.err == nil {
		copy(buf, own[:r.n])
		return r.n, r.fds, nil
	}
	c.discard(ctx, r.fds)
	if errors.Is(r.err, sockets.ErrDescriptors) {
		return copy(buf, own[:r.n]), nil, fmt.Errorf("read from the attachment's peer: %w", r.err)
	}
	if ctx.Err() != nil {
		return 0, nil, fmt.Errorf("read from the attachment's peer: %w", ctx.Err())
	}
	if errors.Is(r.err, io.EOF) || errors.Is(r.err, syscall.ECONNRESET) {
		return 0, nil, io.EOF // a SEQPACKET peer that closes with unread data causes a reset
	}
	return 0, nil, fmt.Errorf("read from the attachment's peer: %w", r.err)
}

// receive reads one message. It returns open descriptors, also with an error.
func (c *Conn) receive(buf []byte) (r received) {
	var room [256]byte // receive accepts at most maxFDs of these
	oob := room[:0]
	if c.takes {
		oob = room[:unix.CmsgSpace(4*maxFDs)]
	}
	var oobn, flags int
	r.err = patiently(func() (err error) {
		r.n, oobn, flags, _, err = c.c.ReadMsgUnix(buf, oob)
		return err
	})
	fds, err := sockets.Rights(oob[:oobn]) // also of an empty message, which reads like the end
	r.fds = fds
	switch {
	case r.err != nil:
	case err != nil:
		r.err = fmt.Errorf("%w: control data: %w", ErrMessage, err)
	case flags&unix.MSG_TRUNC != 0:
		r.err = fmt.Errorf("%w: more than %d bytes", ErrMessage, len(buf))
	case c.takes && sockets.Lost(flags, len(fds), maxFDs) != nil:
		r.err = sockets.ErrDescriptors
	case flags&unix.MSG_CTRUNC != 0 && c.takes:
		r.err = fmt.Errorf("%w: more than %d descriptors", ErrMessage, maxFDs)
	case flags&unix.MSG_CTRUNC != 0:
		r.fds = Descriptors{-1}
	}
	return r
}

// discard closes the peer's descriptors, and waits for that until ctx ends; the peer may make a
// close last for ever. No other message is received meanwhile, so a connection has at most one
// goroutine stuck in discard.
func (c *Conn) discard(ctx context.Context, fds Descriptors) {
	if !slices.ContainsFunc(fds, func(fd int) bool { return fd >= 0 }) {
		return
	}
	closed := make(chan struct{})
	c.held.Go(func() {
		defer close(closed)
		for _, fd := range fds {
			// A socket does not linger for the goroutine that closes its last duplicate.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // fails for all else
		}
		fds.Close()
	})
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
