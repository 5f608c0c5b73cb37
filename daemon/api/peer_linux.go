package api

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
	places "github.com/exanet/pfd/internal/sockets"
)

// Bounds of the control interface (ours).
const (
	controlConnsPerUID = 32
	controlConns       = 256 // of all uids
	controlHeaderBytes = 16 << 10
	controlReadTime    = 5 * time.Second
	controlWriteTime   = 30 * time.Second
	controlAnswerTime  = 25 * time.Second
	controlIdleTime    = time.Minute
)

// peerListener gives connections that know their peer, and refuses those of a
// uid that has too many open.
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
		dropped: dropped, closing: make(chan struct{}, limits.Descriptors(closing, closingPart)), done: make(chan struct{}),
	}
}

// Close implements net.Listener.
func (l *peerListener) Close() error {
	l.end.Do(func() { close(l.done) })
	return l.UnixListener.Close()
}

type connKey struct{}

// peerConn is a connection of a known peer. Before Linux 6.16 a peer may have
// each read, and the close, last for as long as it likes (a descriptor of its own
// that comes with the data and closes slowly): nobody waits for them, and the
// connection counts until they are over.
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
		// Whoever reads wakes, and the peer sees the end now.
		_ = c.SetDeadline(time.Unix(1, 0))
		_ = c.CloseRead()
		_ = c.CloseWrite()
		go func() {
			defer c.limit.Give(c.peer.UID)
			_ = c.UnixConn.Close() // nobody is there to be told
			c.reads.Lock()
			//lint:ignore SA2001 the reads are over
			c.reads.Unlock()
		}()
	})
	return nil
}

// left tells whether the peer sends nothing any more.
func (c *peerConn) left() (left bool) {
	err := places.Control(c, func(fd int) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 0)
		left = err == nil && n > 0
		return nil
	})
	return left || err != nil
}

// acceptPause is how long an accept that failed is left alone at most (ours).
const acceptPause = time.Second

// Accept implements net.Listener. Its error is net.ErrClosed: where descriptors or
// memory are short, the connections that close will help, and package http would
// give the socket up.
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

// What connections that are refused cost at most (ours).
const (
	refusing = 64  // answered at one time
	closing  = 512 // being closed at one time
	// controlPart and closingPart make connections less where pfd may have few descriptors.
	controlPart = 32
	closingPart = 64
	refuseTime  = time.Second
)

// refuse closes a connection, and answers its first request where not many others
// are answered so at this moment. Where the kernel closes so many so slowly that
// threads become scarce it waits, but not beyond the listener's end.
func (l *peerListener) refuse(c *net.UnixConn) {
	select {
	case l.closing <- struct{}{}:
	case <-l.done:
		go c.Close() // nobody is there to be told
		return
	}
	go func() {
		defer func() { <-l.closing }()
		defer c.Close()
		if len(l.closing) > refusing || c.SetDeadline(time.Now().Add(refuseTime)) != nil {
			return
		}
		if _, err := c.Read(make([]byte, controlHeaderBytes)); err == nil {
			_, _ = c.Write(tooMany()) // it may have left
		}
	}()
}

// tooMany is what a connection is told that is one too many.
func tooMany() []byte {
	body := fmt.Sprintf(`{"version":%d,"code":%q,"error":"this user, or all users together, have too many connections to pfd's control socket: close some first"}`+"\n", control.Version, control.CodeBusy)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
