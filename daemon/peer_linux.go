package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// peer is who a connection comes from, as the kernel says.
type peer struct {
	pid int
	uid uint32
}

// sees tells whether the peer may see what belongs to uid: root and the uid of
// pfd see everything (spec/api.md, design.md "Trust").
func (p peer) sees(uid uint32) bool { return p.all() || p.uid == uid }

// all tells whether the peer sees everything.
func (p peer) all() bool { return p.uid == 0 || p.uid == uint32(os.Geteuid()) }

// peerOf asks the kernel who is at the other end.
func peerOf(c syscall.Conn) (peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, fmt.Errorf("peer of a connection: %w", err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return peer{}, fmt.Errorf("peer of a connection: %w", err)
	}
	if cerr != nil {
		return peer{}, fmt.Errorf("peer of a connection: %w", os.NewSyscallError("getsockopt SO_PEERCRED", cerr))
	}
	return peer{pid: int(cred.Pid), uid: cred.Uid}, nil
}

// limiter counts what a uid has open.
type limiter struct {
	max int
	mu  sync.Mutex
	n   map[uint32]int
	sum int
}

func newLimiter(max int) *limiter { return &limiter{max: max, n: map[uint32]int{}} }

// take gives whether uid may have one more; then give must follow.
func (l *limiter) take(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n[uid] >= l.max {
		return false
	}
	l.n[uid]++
	l.sum++
	return true
}

func (l *limiter) give(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum--
	if l.n[uid]--; l.n[uid] <= 0 {
		delete(l.n, uid)
	}
}

// setMax changes how many a uid may have; those that it has stay.
func (l *limiter) setMax(max int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.max = max
}

func (l *limiter) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sum
}

// peerListener gives connections that know their peer, and drops those of a
// uid that has too many open.
type peerListener struct {
	*net.UnixListener
	limit   *limiter
	dropped *atomic.Uint64
}

// peerConn is a connection of a known peer.
type peerConn struct {
	*net.UnixConn
	peer  peer
	close sync.Once
	limit *limiter
}

func (c *peerConn) Close() error {
	c.close.Do(func() { c.limit.give(c.peer.uid) })
	return c.UnixConn.Close()
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
		if err != nil || !l.limit.take(p.uid) {
			l.dropped.Add(1)
			c.Close()
			continue
		}
		return &peerConn{UnixConn: c, peer: p, limit: l.limit}, nil
	}
}
