package api

import (
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// Connections whose close never ends (before Linux 6.16, because of descriptors that their peers
// have sent) do not delay the end of pfd.
func TestListenerEndsWhereNothingCloses(t *testing.T) {
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l := newPeerListener(u, new(atomic.Uint64))
	for range cap(l.closing) {
		l.closing <- struct{}{}
	}
	over := make(chan error, 1)
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				over <- err
				return
			}
		}
	}()
	for range controlConnsPerUID + 1 {
		c, err := net.DialUnix("unix", nil, u.Addr().(*net.UnixAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for l.dropped.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-over:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("Accept does not end")
	}
}
