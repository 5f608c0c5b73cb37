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

// Times that a peer is given (ours).
const (
	// HandshakeTimeout is how long either side waits for the other's part of
	// the handshake, where its context does not say.
	HandshakeTimeout = 5 * time.Second
	// sendTimeout is how long a message may wait for a peer that does not read.
	sendTimeout = time.Second
)

// maxFDs is the number of descriptors that a message may carry; the kernel
// throws further ones away (ours).
const maxFDs = 4

var (
	// ErrNoDaemon says that no pfd listens.
	ErrNoDaemon = errors.New("no pfd answers")
	// ErrStranger says that another user serves the socket.
	ErrStranger = errors.New("another user serves the socket")
)

// Peer is the process at the other end, as the kernel names it.
type Peer struct {
	PID      int
	UID, GID uint32
	// PIDFD refers to the process itself and not to its number. It is the
	// connection's and is closed with it; -1 on the process's side.
	PIDFD int
	// Keeper is a pidfd of the process's keeper, which came with MAPPED; the
	// connection's as well, -1 before.
	Keeper int
}

// Conn is one connection of an attachment. Receiving and sending may go on at
// the same time, each by one goroutine; Close may be called at any time and
// ends both.
type Conn struct {
	c      *net.UnixConn
	peer   Peer
	takes  bool           // descriptors
	pages  *Pages         // that Handshake has mapped
	keeper *keeper.Keeper // on the process's side: made by Handshake
	lent   *keeper.Keeper // the same, where pfd asked for a helper: the helper's
	helper *os.Process
	trust  []uint32       // users beside root and the own one, as Dial was told
	held   sync.WaitGroup // goroutines that the kernel may keep for as long as the peer likes
	once   sync.Once
	close  error
}

// newConn makes a connection of pfd's side, or of the library's, which takes the
// descriptors that pfd sends.
func newConn(c *net.UnixConn, pfd bool) (*Conn, error) {
	conn := &Conn{c: c, peer: Peer{PIDFD: -1, Keeper: -1}, takes: !pfd}
	if err := sockets.Control(c, func(fd int) error { return conn.peer.read(fd, pfd) }); err != nil {
		return nil, fmt.Errorf("asking for the peer's credentials: %w", err)
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

// TakeDescriptors has the connection take descriptors from now on. pfd's side
// takes none before: to close a descriptor may take as long as whoever made it
// likes (a socket that lingers, a file of FUSE).
func (c *Conn) TakeDescriptors() error { return c.passRights(true) }

func (c *Conn) passRights(on bool) error {
	err := sockets.Control(c.c, func(fd int) error { return sockets.PassRights(fd, on) })
	if err != nil {
		err = fmt.Errorf("taking descriptors: %w", err)
	}
	c.takes = on && err == nil
	return err
}

// Close closes the connection, and the peer's pidfds, or the process's keeper and
// helper, with it. An error matches ErrHelper where the helper cannot end: what it
// has begun may still reach the process's memory. Close may be called again and gives
// the same answer.
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

// CloseWrite says that nothing more will be sent; the peer reads the end of the
// connection and can still send.
func (c *Conn) CloseWrite() error { return c.c.CloseWrite() }

// shutdown ends the connection both ways and keeps it open: what was sent is
// still read.
func (c *Conn) shutdown() error {
	err := sockets.Control(c.c, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	if err != nil && !errors.Is(err, unix.ENOTCONN) { // ENOTCONN: it is over already
		return fmt.Errorf("ending an attachment's connection: shutdown: %w", err)
	}
	return nil
}

// Send sends one message with descriptors, which stay the caller's. A peer that
// does not read costs two seconds at most, then the error matches
// os.ErrDeadlineExceeded.
func (c *Conn) Send(msg []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var err error
	// Where this process does not run for so long a first deadline passes before the
	// message is tried at all.
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
		return fmt.Errorf("sending to the attachment's peer: %w", limits.Explain(err))
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

// received is what one call of receive found.
type received struct {
	n   int
	fds Descriptors
	err error
}

// abandonTime is how long Receive waits, when its context has ended, for a call
// that the kernel does not end (ours).
const abandonTime = 100 * time.Millisecond

// Receive reads one message into buf, of at least MaxMessage bytes, and gives
// its size and the descriptors that came with it, which are the caller's. It
// ends when ctx does. The peer's orderly end is io.EOF. A message that is too
// large or carries too many descriptors matches ErrMessage; what came with it
// has been closed. Where this process has no room for its descriptors the error matches
// sockets.ErrDescriptors, and the message is read. Where the connection takes no descriptors the kernel closes
// those that came, and one that is -1 stands for them.
//
// Before Linux 6.16 a peer may have that last for ever: the connection is of no
// use then, and Receive ends without it.
func (c *Conn) Receive(ctx context.Context, buf []byte) (int, Descriptors, error) {
	// No deadline of an earlier call may be left; and none of this one may come
	// after it.
	if err := c.c.SetReadDeadline(time.Time{}); err != nil {
		return 0, nil, fmt.Errorf("reading from the attachment's peer: %w", err)
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
		return copy(buf, own[:r.n]), nil, fmt.Errorf("reading from the attachment's peer: %w", r.err)
	}
	if ctx.Err() != nil {
		return 0, nil, fmt.Errorf("reading from the attachment's peer: %w", ctx.Err())
	}
	if errors.Is(r.err, io.EOF) || errors.Is(r.err, syscall.ECONNRESET) {
		return 0, nil, io.EOF // a SEQPACKET peer that leaves with unread data is a reset
	}
	return 0, nil, fmt.Errorf("reading from the attachment's peer: %w", r.err)
}

// receive reads one message. What it gives is open, also with an error.
func (c *Conn) receive(buf []byte) (r received) {
	var room [256]byte // of which maxFDs descriptors and no more are accepted
	oob := room[:0]
	if c.takes {
		oob = room[:unix.CmsgSpace(4*maxFDs)]
	}
	var oobn, flags int
	r.err = patiently(func() (err error) {
		r.n, oobn, flags, _, err = c.c.ReadMsgUnix(buf, oob)
		return err
	})
	fds, err := sockets.Rights(oob[:oobn]) // also of an empty message, which reads as the end
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

// discard closes descriptors that came from the peer, and waits for that until
// ctx ends; the peer may have it last for ever. Another message is not received
// meanwhile, so that a connection holds one goroutine with it at most.
func (c *Conn) discard(ctx context.Context, fds Descriptors) {
	if !slices.ContainsFunc(fds, func(fd int) bool { return fd >= 0 }) {
		return
	}
	closed := make(chan struct{})
	c.held.Go(func() {
		defer close(closed)
		for _, fd := range fds {
			// A socket does not linger for whoever keeps no other duplicate of it.
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // fails for all else
		}
		fds.Close()
	})
	select {
	case <-closed:
	case <-ctx.Done():
	}
}
