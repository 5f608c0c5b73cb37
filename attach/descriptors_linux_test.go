package attach

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
)

// withoutDescriptors calls f while this process can open no descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	lowest, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.Close(lowest)
	}
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: old.Max})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// A process that is out of descriptors learns that, and pfd reports it for itself to its process:
// the peer did nothing wrong. The attachment continues.
func TestOutOfDescriptors(t *testing.T) {
	null := openNull(t) // closed after the server has ended
	t.Cleanup(func() { null.Close() })
	taken, held := make(chan struct{}), make(chan error, 1)
	path := serve(t, func(ctx context.Context, c *Conn) {
		err := c.TakeDescriptors()
		close(taken)
		if err == nil {
			err = c.Hold(ctx, Handlers{})
		}
		held <- err
	})
	c := dial(t, path)
	<-taken // accepted: that needs a descriptor, too
	receive := func() error {
		var buf [MaxMessage]byte
		n, fds, err := c.Receive(t.Context(), buf[:])
		fds.Close()
		if err != nil {
			return err
		}
		_, err = DecodeShared(buf[:n])
		if r, refused := DecodeRefused(buf[:n]); refused == nil {
			return r
		}
		return err
	}
	share := golden(t)["share"]
	withoutDescriptors(t, func() {
		var r *RefusedError
		if err := errors.Join(c.Send(share, int(null.Fd())), receive()); !errors.As(err, &r) || r.Code != CodeInternal || r.Refused != TypeShare || !strings.Contains(r.Text, "ulimit -n") {
			t.Errorf("pfd without descriptors answers %v", err)
		}
	})
	if err := errors.Join(c.Send(share, int(null.Fd())), receive()); err != nil {
		t.Errorf("pfd with descriptors again: %v", err)
	}
	if err := errors.Join(c.CloseWrite(), <-held); err != nil {
		t.Error(err)
	}

	path = serve(t, func(ctx context.Context, c *Conn) {
		if err := c.Send(share, int(null.Fd()), int(null.Fd())); err != nil {
			t.Error(err)
		}
		_ = c.Hold(ctx, Handlers{})
	})
	c = dial(t, path)
	awaitInput(t, c)
	withoutDescriptors(t, func() {
		if err := receive(); !errors.Is(err, sockets.ErrDescriptors) || !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrMessage) {
			t.Errorf("a process without descriptors: %v", err)
		}
	})
}

func openNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// awaitInput waits until a message has arrived.
func awaitInput(t *testing.T, c *Conn) {
	t.Helper()
	err := sockets.Control(c.c, func(fd int) error {
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
