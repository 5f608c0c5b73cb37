package stream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// pair returns the two ends of a connection.
func pair(t testing.TB, from *rdma.Endpoint, l *stream.Listener) (a, b *stream.Conn) {
	t.Helper()
	a, err := stream.Dial(t.Context(), from, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); c.Close() })
	return a, c.(*stream.Conn)
}

// opErr checks an error of package net: it matches want, and its text has says.
func opErr(t *testing.T, what string, err, want error, says string) {
	t.Helper()
	var op *net.OpError
	if !errors.As(err, &op) || op.Net != "exanet" || !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want a net.OpError of %v with %q", what, err, want, says)
	}
}

func TestDialErrors(t *testing.T) {
	socket := startPFD(t)
	ep, other := attach(t, socket, 0), attach(t, socket, 1)
	there := other.Info().Interface
	listen(t, other, ":79")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	for addr, c := range map[string]struct {
		ctx  context.Context
		want error
		says string
	}{
		fmt.Sprintf("exanet:1/%d/80", there):               {t.Context(), syscall.ECONNREFUSED, "exanet:1/16/80"},
		fmt.Sprintf("exanet:1/%d/80", there+1):             {t.Context(), syscall.ECONNREFUSED, "no process"},
		"exanet:77/16/80":                                  {t.Context(), syscall.ECONNREFUSED, "no process"},
		fmt.Sprintf("exanet:0/%d/80", ep.Info().Interface): {t.Context(), rdma.ErrRequest, "own"},
		fmt.Sprintf("exanet:1/%d/81", there):               {ended, context.Canceled, "canceled"},
		fmt.Sprintf("exanet:1/%d/82", there):               {late, os.ErrDeadlineExceeded, "timeout"},
	} {
		c2, err := stream.Dial(c.ctx, ep, addr)
		if err == nil {
			c2.Close()
		}
		opErr(t, addr, err, c.want, c.says)
	}
	for _, addr := range []string{"", "exanet:", "tcp:1/16/80", "exanet:1/16", "exanet:1/16/80/1", "exanet:x/16/80", "exanet:4194304/16/80", "exanet:1/15/80", "exanet:1/32/80", "exanet:1/16/4294967296", "exanet:1/16/-1", "exanet:1/16/+1", "exanet:1//80", "1/16/80"} {
		_, err := stream.Dial(t.Context(), ep, addr)
		var bad *net.AddrError
		if !errors.As(err, &bad) || bad.Addr != addr {
			t.Errorf("dial %q: %v", addr, err)
		}
		if _, err = stream.Listen(ep, addr); !errors.As(err, &bad) || bad.Addr != addr {
			t.Errorf("listen on %q: %v", addr, err)
		}
	}
	_, err := stream.Listen(ep, fmt.Sprintf("exanet:1/%d/80", there))
	opErr(t, "another endpoint's", err, syscall.EADDRNOTAVAIL, "exanet:1/16/80")
	l := listen(t, ep, ":7")
	_, err = stream.Listen(ep, ":7")
	opErr(t, "a port in use", err, syscall.EADDRINUSE, "port 7")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	opErr(t, "closed twice", l.Close(), net.ErrClosed, "")
	_, err = l.Accept()
	opErr(t, "accept of a closed one", err, net.ErrClosed, "")
	listen(t, ep, ":7")
}

// A process that is stopped, or whose messages are lost, is asked again, also if this process has
// slept.
func TestDialAsksAgain(t *testing.T) {
	socket := startPFD(t)
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	listen(t, from, ":80")
	for !stream.Sleeps(from) {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := stream.Dial(ctx, from, fmt.Sprintf("exanet:1/%d/80", to.Info().Interface))
		done <- err
	}()
	for range 3 {
		if err := to.Await(t.Context(), func() bool { _, ok := to.Take(mailbox.KindConnection); return ok }); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	opErr(t, "dial", <-done, context.Canceled, "")
}

// A process of another group is not admitted.
func TestDialIsNotAdmitted(t *testing.T) {
	socket := startPFD(t)
	to := attach(t, socket, 1)
	l := listen(t, to, ":80")
	from, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Group: "other", AcceptGroup: true})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	_, err = stream.Dial(t.Context(), from, l.Addr().String())
	opErr(t, "dial", err, syscall.ECONNREFUSED, "admits")
}

func TestEnds(t *testing.T) {
	socket := startPFD(t)
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	l := listen(t, to, ":80")

	t.Run("half", func(t *testing.T) {
		a, b := pair(t, from, l)
		if a.LocalAddr().String() != b.RemoteAddr().String() || a.RemoteAddr() != l.Addr() || b.LocalAddr() != l.Addr() {
			t.Errorf("addresses %v to %v, %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
		}
		if _, err := a.Write([]byte("question")); err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, err := a.Write([]byte("more"))
		opErr(t, "write after CloseWrite", err, syscall.EPIPE, "CloseWrite")
		if got, err := io.ReadAll(b); string(got) != "question" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := b.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(a); string(got) != "answer" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		opErr(t, "closed twice", b.Close(), net.ErrClosed, "")
		_, err = b.Read(nil)
		opErr(t, "read after Close", err, net.ErrClosed, "")
		_, err = b.Write(nil)
		opErr(t, "write after Close", err, net.ErrClosed, "")
		opErr(t, "CloseWrite after Close", b.CloseWrite(), net.ErrClosed, "")
		opErr(t, "deadline after Close", b.SetDeadline(time.Now()), net.ErrClosed, "")
	})
	t.Run("writing to a closed end", func(t *testing.T) {
		a, b := pair(t, from, l)
		b.Close()
		var err error
		for err == nil {
			_, err = a.Write(make([]byte, 1000))
		}
		opErr(t, "write", err, syscall.EPIPE, "peer")
	})
	t.Run("nobody accepts", func(t *testing.T) {
		l := listen(t, to, ":81")
		a, err := stream.Dial(t.Context(), from, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		l.Close()
		_, err = a.Read(make([]byte, 1))
		opErr(t, "read", err, syscall.ECONNRESET, "")
	})
	t.Run("the endpoint closes", func(t *testing.T) {
		third := attach(t, socket, 1)
		a, b := pair(t, from, listen(t, third, ":80"))
		if _, err := b.Write([]byte("the last")); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadFull(a, make([]byte, 8)); err != nil {
			t.Fatal(got, err)
		}
		third.Close()
		_, err := b.Read(make([]byte, 1))
		opErr(t, "its own", err, syscall.ECONNRESET, "")
		// A write that the connection started meanwhile notices Close before the end.
		if !errors.Is(err, rdma.ErrGone) && !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("%v", err)
		}
		_, err = a.Read(make([]byte, 1)) // the next sign of life finds nobody
		opErr(t, "the peer's", err, syscall.ECONNRESET, "ended")
		_, err = stream.Listen(third, ":82")
		opErr(t, "listen", err, rdma.ErrGone, "")
	})
}

// Streams of writes and reads of all sizes, in both directions at once.
func TestSizes(t *testing.T) {
	socket := startPFD(t)
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	l := listen(t, to, ":80")
	for _, most := range []int{1, 48, 49, 1000, 4096, 65536, 65537, 1 << 20} {
		a, b := pair(t, from, l)
		total := min(3<<19, 500*most)
		var g sync.WaitGroup
		for _, c := range [][2]*stream.Conn{{a, b}, {b, a}} {
			want := make([]byte, total)
			r := rand.New(rand.NewPCG(uint64(most), 1))
			for i := range want {
				want[i] = byte(r.Uint32())
			}
			g.Go(func() {
				for b := want; len(b) > 0; {
					n := min(len(b), 1+r.IntN(most))
					if k, err := c[0].Write(b[:n]); k != n || err != nil {
						t.Errorf("%d bytes of %d, %v", k, n, err)
						return
					}
					b = b[n:]
				}
				if err := c[0].CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			g.Go(func() {
				if got, err := io.ReadAll(c[1]); !bytes.Equal(got, want) || err != nil {
					t.Errorf("writes of at most %d bytes: %d bytes of %d, %v", most, len(got), len(want), err)
				}
			})
		}
		g.Wait()
		a.Close()
		b.Close()
	}
}
