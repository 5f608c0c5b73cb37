package attach

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/linger"
)

// sendLingering sends a message with a descriptor that lingers, of which the receiver has the last
// duplicate.
func sendLingering(t *testing.T, q *linger.Quiet, closing *sync.WaitGroup, c *Conn, msg []byte) error {
	t.Helper()
	f, err := q.Socket()
	if err != nil {
		t.Fatal(err)
	}
	err = c.Send(msg, int(f.Fd()))
	closing.Go(func() { _ = f.Close() }) // the last one if no receiver has the message
	return err
}

// On a kernel where any peer can send descriptors, lingering ones delay no other peer, however
// they arrive: in a hello, after it and never read, in place of a keeper, with a message that
// takes a descriptor, and after a refusal.
func TestLingeringDescriptors(t *testing.T) {
	q, err := linger.New()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 64)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, l, func(ctx context.Context, c *Conn) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := c.AwaitHello(ctx); err != nil {
				over <- err
				return
			}
			m, err := NewMemory()
			if err != nil {
				over <- err
				return
			}
			defer m.Close()
			if err = c.Offer(ctx, m, m.WakeFD()); err == nil {
				err = c.TakeDescriptors()
			}
			if err == nil {
				err = c.Welcome(testWelcome)
			}
			if err == nil {
				err = c.Hold(ctx, Handlers{})
			}
			over <- err
		})
	}()
	var closing sync.WaitGroup
	good, conns := golden(t), []*Conn{}
	connect := func() *Conn {
		c := dial(t, path)
		conns = append(conns, c)
		return c
	}
	const each = 8
	for range each {
		if err := sendLingering(t, q, &closing, connect(), good["hello"]); err != nil {
			t.Fatal(err)
		}
		c := connect()
		if err := c.Send(good["hello"]); err != nil {
			t.Fatal(err)
		}
		_ = sendLingering(t, q, &closing, c, good["hello"])
		_ = sendLingering(t, q, &closing, c, good["hello"])
		c = connect()
		if err := c.Send(good["hello"]); err != nil {
			t.Fatal(err)
		}
		var buf [MaxMessage]byte
		if _, fds, err := c.Receive(t.Context(), buf[:]); err != nil {
			t.Fatal(err)
		} else {
			fds.Close()
		}
		if err := sendLingering(t, q, &closing, c, good["mapped"]); err != nil {
			t.Fatal(err)
		}
		_ = sendLingering(t, q, &closing, c, good["share"])
		c = connect()
		if _, fds, err := c.Handshake(t.Context(), Hello{Group: "g"}); err != nil {
			t.Fatal(err)
		} else {
			fds.Close()
		}
		if err := sendLingering(t, q, &closing, c, good["share"]); err != nil {
			t.Fatal(err)
		}
		_ = sendLingering(t, q, &closing, c, good["share"])
	}
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 4 * each {
		select {
		case <-over:
		case <-time.After(2 * time.Minute):
			t.Error("a handler does not end")
		}
	}
	// Another connection of this user without such descriptors.
	c := dial(t, path)
	if _, fds, err := c.Handshake(t.Context(), Hello{Group: "g"}); err != nil {
		t.Error(err)
	} else {
		fds.Close()
	}
	cancel()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("Serve does not end")
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	closing.Wait()
}
