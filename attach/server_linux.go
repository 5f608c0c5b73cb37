package attach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// MaxConnsPerUID bounds the connections of one user, so that none can use up
// pfd's descriptors (ours: four times the slots that a node has).
const MaxConnsPerUID = 64

// Serve accepts connections on l, a SOCK_SEQPACKET listener, until ctx ends; it
// then closes l, waits for the handlers and returns nil. Each connection gets a
// goroutine with handle, after which it is closed. The context that handle gets
// ends with ctx. An error means that l does not accept any more; l
// is closed then too.
//
// Each dropped hears of a connection that is refused because its user has too
// many.
func Serve(ctx context.Context, l *net.UnixListener, handle func(ctx context.Context, c *Conn), dropped ...func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = l.Close() // fails where the caller has closed it
		close(closed)
	})
	defer func() {
		cancel()
		<-closed
	}()
	var handlers sync.WaitGroup
	defer handlers.Wait()
	users := userCount{n: map[uint32]int{}}
	pause := time.Duration(0)
	for {
		uc, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				cancel() // before the handlers are waited for
				return fmt.Errorf("accepting attachments: %w", err)
			}
			// Out of descriptors or memory: the ones that close will help.
			pause = min(max(2*pause, time.Millisecond), time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		c, err := newConn(uc, true)
		if err != nil {
			handlers.Go(func() { refuseRaw(ctx, uc, CodeInternal, err.Error()) })
			continue
		}
		if !users.add(c.peer.UID) {
			for _, f := range dropped {
				f()
			}
			_ = c.Refuse(CodeBusy, TypeHello, fmt.Sprintf("user %d has %d connections to pfd: close some first", c.peer.UID, MaxConnsPerUID))
			_ = c.Close()
			continue
		}
		handlers.Go(func() {
			defer users.remove(c.peer.UID)
			defer c.Close()
			handle(ctx, c)
		})
	}
}

// refuseRaw answers a connection of which not even the peer is known. No call's
// error changes anything: the connection is given up. The hello is read first:
// closing a socket with unread data resets it, and the refusal would be lost.
func refuseRaw(ctx context.Context, uc *net.UnixConn, code Code, text string) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	c := &Conn{c: uc, peer: Peer{PIDFD: -1}}
	var buf [MaxMessage]byte
	_, fds, _ := c.Receive(ctx, buf[:])
	fds.Close()
	_ = c.Refuse(code, TypeHello, text)
	_ = c.Close()
}

// userCount counts the connections of each user.
type userCount struct {
	mu sync.Mutex
	n  map[uint32]int
}

func (u *userCount) add(uid uint32) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n[uid] >= MaxConnsPerUID {
		return false
	}
	u.n[uid]++
	return true
}

func (u *userCount) remove(uid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n[uid]--; u.n[uid] == 0 {
		delete(u.n, uid)
	}
}
