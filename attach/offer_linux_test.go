package attach

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
)

// offer is pfd's part of a handshake until the process has named its keeper. It returns the
// memory, which the caller closes, or nil if that fails.
func offer(t *testing.T, ctx context.Context, c *Conn) *Memory {
	t.Helper()
	if _, err := c.AwaitHello(ctx); err != nil {
		t.Errorf("server: %v", err)
		return nil
	}
	m, err := NewMemory()
	if err != nil {
		t.Errorf("server: %v", err)
		return nil
	}
	if err := c.Offer(ctx, m, m.WakeFD()); err != nil {
		t.Errorf("server: %v", errors.Join(err, m.Close()))
		return nil
	}
	return m
}

// TestRefusedMapped sends messages that no library sends in place of a mapped. Each is refused,
// names no keeper, and its descriptors are closed.
func TestRefusedMapped(t *testing.T) {
	noLeak(t)
	errs := make(chan error, 1)
	path := serve(t, func(ctx context.Context, c *Conn) {
		if _, err := c.AwaitHello(ctx); err != nil {
			errs <- err
			return
		}
		m, err := NewMemory()
		if err != nil {
			errs <- err
			return
		}
		defer m.Close()
		err = c.Offer(ctx, m, m.WakeFD())
		if c.Peer().Keeper != -1 {
			t.Errorf("keeper %d", c.Peer().Keeper)
		}
		errs <- err
	})
	good := golden(t)
	version1 := bytes.Clone(good["mapped"])
	version1[offProtocol] = 1
	_, unknown := begin(nil, 99, headerSize, "x")
	for _, tt := range []struct {
		name  string
		msg   []byte
		fds   int
		seals int
		want  error
	}{
		{"no descriptor", good["mapped"], 0, 0, ErrMessage},
		{"two descriptors", good["mapped"], 2, 0, ErrMessage},
		{"four descriptors", good["mapped"], 4, 0, ErrMessage},
		{"five descriptors", good["mapped"], 5, 0, ErrMessage},
		{"200 descriptors", good["mapped"], 200, 0, ErrMessage},
		{"one byte", []byte{1}, 1, 0, ErrMessage},
		{"huge", make([]byte, 100000), 1, 0, ErrMessage},
		{"version 1", version1, 1, 0, ErrMessage},
		{"hello again", good["hello"], 0, 0, ErrMessage},
		{"memory", good["memory"], 3, 0, ErrMessage},
		{"share", good["share"], 1, 0, ErrMessage},
		{"unknown type", unknown, 1, 0, ErrMessage},
		{"sealed by the process", good["mapped"], 1, unix.F_SEAL_SEAL, ErrMemory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, path)
			defer c.Close()
			if err := c.Send(good["hello"]); err != nil {
				t.Fatal(err)
			}
			var buf [MaxMessage]byte
			n, memory, err := c.Receive(t.Context(), buf[:])
			if err != nil || n != headerSize || len(memory) != MemoryFDs {
				t.Fatalf("%d bytes with %d descriptors: %v", n, len(memory), err)
			}
			defer memory.Close()
			if _, err := unix.FcntlInt(uintptr(memory[0]), unix.F_ADD_SEALS, tt.seals); err != nil {
				t.Fatal(err)
			}
			fds := make([]int, tt.fds)
			for i := range fds {
				fds[i] = memory[1]
			}
			if err := c.Send(tt.msg, fds...); err != nil {
				t.Fatal(err)
			}
			if err := <-errs; !errors.Is(err, tt.want) {
				t.Errorf("server: %v, want %v", err, tt.want)
			}
			if n, _, err = c.Receive(t.Context(), buf[:]); err != nil {
				t.Fatal(err)
			}
			if r, err := DecodeRefused(buf[:n]); err != nil || r.Code != CodeProtocol || r.Refused != TypeMapped || r.Text == "" {
				t.Errorf("refusal %+v, %v", r, err)
			}
		})
	}
}

// TestDescriptorsAreTakenWhereOneIsDue: on pfd's socket the kernel passes no descriptor with a
// hello, one with a mapped, and none afterwards.
func TestDescriptorsAreTakenWhereOneIsDue(t *testing.T) {
	noLeak(t)
	path := filepath.Join(t.TempDir(), "s"+SocketSuffix)
	l, file, err := sockets.Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, l, func(ctx context.Context, c *Conn) {
			m := offer(t, ctx, c)
			if m == nil {
				return
			}
			defer m.Close()
			if c.Peer().Keeper < 0 {
				t.Error("no keeper")
			}
			if err := c.Welcome(testWelcome); err != nil {
				t.Error(err)
			}
			if err := c.Hold(ctx, Handlers{}); err != nil {
				t.Error(err)
			}
		})
	}()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if err := file.Remove(); err != nil {
			t.Error(err)
		}
	}()
	if !passes(t) {
		t.Skip("this kernel has no SO_PASSRIGHTS (Linux 6.16): it sends descriptors to anybody")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd, good := int(null.Fd()), golden(t)
	c := dial(t, path)
	defer c.Close()
	if err := c.Send(good["hello"], fd); !errors.Is(err, unix.EPERM) {
		t.Errorf("a descriptor with a hello: %v, want EPERM", err)
	}
	// It was not sent at all: the connection is still usable.
	_, fds, err := c.Handshake(t.Context(), Hello{Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	fds.Close()
	for _, name := range []string{"mapped", "share", "register"} {
		if err := c.Send(good[name], fd); !errors.Is(err, unix.EPERM) {
			t.Errorf("a descriptor with %s after the welcome: %v, want EPERM", name, err)
		}
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var buf [MaxMessage]byte
	if n, _, err := c.Receive(t.Context(), buf[:]); err == nil {
		t.Errorf("%d bytes where the end is due", n)
	}
}

// passes reports whether the kernel has SO_PASSRIGHTS.
func passes(t *testing.T) bool {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "passes"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sockErr error
	if err := raw.Control(func(fd uintptr) {
		_, sockErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
	}); err != nil {
		t.Fatal(err)
	}
	return sockErr == nil
}
