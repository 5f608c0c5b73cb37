package api

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	"github.com/exanet/pfd/internal/sockets"
)

// Bounds of the control interface. Values below are defined by this project.
const (
	controlConnsPerUID = 32
	controlConns       = 256 // of all uids
	controlHeaderBytes = 16 << 10
	controlReadTime    = 5 * time.Second
	controlWriteTime   = 30 * time.Second
	controlAnswerTime  = 25 * time.Second
	controlIdleTime    = time.Minute
)

// peerListener accepts connections that know their peer, and refuses those of a uid that has
// too many open.
type peerListener struct {
	*net.UnixListener
	limit   *quota.Quota
	dropped *atomic.Uint64
	closing chan struct{}
	done    chan struct{} // closed by Close
	end     sync.Once
}

func newPeerListener(l *net.UnixListener, dropped *atomic.Uint64) *peerListener {
	return &peerListener{
		UnixListener: l, limit: quota.New(controlConnsPerUID, limits.Descriptors(controlConns, controlPart), quota.Privileged),
		dropped: dropped, closing: make(chan struct{}, limits.Descriptors(maxClosing, closingPart)), done: make(chan struct{}),
	}
}

// Close implements net.Listener.
func (l *peerListener) Close() error {
	l.end.Do(func() { close(l.done) })
	return l.UnixListener.Close()
}

type connKey struct{}

// peerConn is a connection of a known peer. Before Linux 6.16 a peer can delay each read, and
// the close, without bound (by a descriptor that comes with the data and closes slowly). So no
// caller waits for the close, and the connection counts until the reads and the close have
// ended.
type peerConn struct {
	*net.UnixConn
	peer  Peer
	close sync.Once
	reads sync.RWMutex // held for reading by each read
	limit *quota.Quota
}

// Read implements net.Conn.
func (c *peerConn) Read(p []byte) (int, error) {
	c.reads.RLock()
	defer c.reads.RUnlock()
	return c.UnixConn.Read(p)
}

// Close implements net.Conn. It never fails and never waits.
func (c *peerConn) Close() error {
	c.close.Do(func() {
		// Readers wake, and the peer sees the end at once.
		_ = c.SetDeadline(time.Unix(1, 0))
		_ = c.CloseRead()
		_ = c.CloseWrite()
		go func() {
			defer c.limit.Give(c.peer.UID)
			_ = c.UnixConn.Close()
			c.reads.Lock()
			//lint:ignore SA2001 the lock waits for the reads
			c.reads.Unlock()
		}()
	})
	return nil
}

// left reports whether the peer has closed its end for sending.
func (c *peerConn) left() (left bool) {
	err := sockets.Control(c, func(fd int) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0)
		left = err == nil && n > 0
		return nil
	})
	return left || err != nil
}

// acceptPause bounds the pause after a failed accept. Defined by this project.
const acceptPause = time.Second

// Accept implements net.Listener. It returns no error but net.ErrClosed: a shortage of
// descriptors or memory passes when connections close, and package http would stop serving.
func (l *peerListener) Accept() (net.Conn, error) {
	for pause := time.Duration(0); ; {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if err != nil {
			pause = min(max(2*pause, time.Millisecond), acceptPause)
			time.Sleep(pause)
			continue
		}
		pause = 0
		p, err := peerOf(c)
		if err != nil || !l.limit.Take(p.UID) {
			l.dropped.Add(1)
			l.refuse(c)
			continue
		}
		return &peerConn{UnixConn: c, peer: p, limit: l.limit}, nil
	}
}

// Bounds of refused connections. Values below are defined by this project.
const (
	maxRefusing = 64  // answered at one time
	maxClosing  = 512 // being closed at one time
	// controlPart and closingPart reduce the bounds if pfd may have few descriptors.
	controlPart = 32
	closingPart = 64
	refuseTime  = time.Second
)

// refuse closes a connection, and answers its first request unless it answers many others at
// this moment. If the kernel closes so many so slowly that threads become scarce, refuse waits,
// but not beyond the listener's end.
func (l *peerListener) refuse(c *net.UnixConn) {
	select {
	case l.closing <- struct{}{}:
	case <-l.done:
		go c.Close()
		return
	}
	go func() {
		defer func() { <-l.closing }()
		defer c.Close()
		if len(l.closing) > maxRefusing || c.SetDeadline(time.Now().Add(refuseTime)) != nil {
			return
		}
		if _, err := c.Read(make([]byte, controlHeaderBytes)); err == nil {
			_, _ = c.Write(tooMany()) // the peer may have left
		}
	}()
}

// tooMany returns the answer to a connection beyond the bounds.
func tooMany() []byte {
	body := fmt.Sprintf(`{"version":%d,"code":%q,"error":"this user, or all users together, have too many connections to pfd's control socket: close some first"}`+"\n", control.Version, control.CodeBusy)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
