package attach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/exanet/pfd/internal/limits"
	"github.com/exanet/pfd/internal/quota"
)

// Bounds of the connections, so that no user exhausts pfd's descriptors and threads. Values below
// are defined by this project.
const (
	// MaxConnsPerUID bounds those of one user: four times the slots of a node.
	MaxConnsPerUID = 64
	// MaxConns bounds those of all users; root and pfd's own user have separate shares.
	MaxConns = 1024
	// connPart and otherPart lower the bounds if pfd may have few descriptors: an attachment has
	// 14, so all of them use seven sixteenths; a connection being refused or closed has 2.
	connPart  = 32
	otherPart = 64
	// maxRefusing bounds the connections to which pfd sends a refusal at one time, maxClosing
	// those that are being closed.
	maxRefusing       = 64
	maxRefusingPerUID = 4
	maxClosing        = 512
	// refuseTime is how long a refused client has to send its hello.
	refuseTime = time.Second
)

// Serve accepts connections on l, a SOCK_SEQPACKET listener, until ctx ends; it then closes l,
// waits for the handlers and returns nil. Each connection gets a goroutine that calls handle, with
// a context that ends with ctx, and then closes it. An error means that l does not accept any
// more; l is closed then too.
//
// Before Linux 6.16 a client may make the close of its connection last for ever, by a descriptor
// that it has sent. Serve does not wait for such a close, but counts the connection as its user's
// until it is closed.
//
// dropped is called for each connection that is refused because there are too many.
func Serve(ctx context.Context, l *net.UnixListener, handle func(ctx context.Context, c *Conn), dropped ...func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = l.Close() // fails if the caller has closed it
		close(closed)
	})
	defer func() {
		cancel()
		<-closed
	}()
	perUID, all := limits.Descriptors(MaxConnsPerUID, connPart), limits.Descriptors(MaxConns, connPart)
	s := server{
		users:    quota.New(perUID, all, quota.Privileged),
		refusing: quota.New(maxRefusingPerUID, limits.Descriptors(maxRefusing, otherPart), quota.Privileged),
		closing:  make(chan struct{}, limits.Descriptors(maxClosing, otherPart)),
	}
	defer s.wait()
	pause := time.Duration(0)
	for {
		uc, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				cancel() // before waiting for the handlers
				return fmt.Errorf("accept attachments: %w", err)
			}
			// Out of descriptors or memory: connections that close free some.
			pause = min(max(2*pause, time.Millisecond), time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		c, err := newConn(uc, true)
		switch {
		case err != nil:
			s.refuse(ctx, &Conn{c: uc, peer: Peer{UID: noUID, PIDFD: -1}}, CodeInternal, "pfd: "+limits.Explain(err).Error())
		case !s.users.Take(c.peer.UID):
			for _, f := range dropped {
				f()
			}
			s.refuse(ctx, c, CodeBusy, fmt.Sprintf("user %d has too many connections to pfd, of %d, or all users together have, of %d: close some first", c.peer.UID, perUID, all))
		default:
			s.handlers.Add(1)
			s.closers.Go(func() {
				defer s.users.Give(c.peer.UID)
				defer c.finish()
				defer s.handlers.Done()
				handle(ctx, c)
			})
		}
	}
}

// noUID is the user of a connection for which the kernel reported none (no user has uid_t -1:
// credentials(7), setuid(2)).
const noUID = ^uint32(0)

// server is Serve's counts.
type server struct {
	users, refusing *quota.Quota
	closing         chan struct{}
	handlers        sync.WaitGroup
	closers         sync.WaitGroup // handlers and closing connections
}

// wait waits for the handlers, and briefly for connections that are being closed.
func (s *server) wait() {
	s.handlers.Wait()
	closed := make(chan struct{})
	go func() {
		s.closers.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(abandonTime):
	}
}

// refuse answers a connection beyond the bounds, and closes it; if many are being refused already,
// it sends nothing. The accept loop does not wait for it, unless the kernel closes so many so
// slowly that threads become scarce.
func (s *server) refuse(ctx context.Context, c *Conn, code Code, text string) {
	select {
	case s.closing <- struct{}{}:
	case <-ctx.Done():
		s.closers.Go(c.finish)
		return
	}
	s.closers.Go(func() {
		defer func() { <-s.closing }()
		defer c.finish()
		if !s.refusing.Take(c.peer.UID) {
			return
		}
		defer s.refusing.Give(c.peer.UID)
		ctx, cancel := context.WithTimeout(ctx, refuseTime)
		defer cancel()
		// No error matters: the connection is closed in any case. The hello is read because
		// closing a socket with unread data resets it, and the refusal would be lost.
		_ = c.Refuse(code, TypeHello, text)
		var buf [MaxMessage]byte
		_, fds, _ := c.Receive(ctx, buf[:])
		c.discard(ctx, fds)
	})
}

// finish closes a connection and waits until the kernel has closed its descriptors.
func (c *Conn) finish() {
	_ = c.Close()
	c.held.Wait()
}
