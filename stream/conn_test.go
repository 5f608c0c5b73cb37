package stream_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// startPFD runs a pfd with two nodes in this process.
func startPFD(t testing.TB) (socket string) { return startLossy(t, 0) }

// startLossy runs one whose link loses frames.
func startLossy(t testing.TB, loss float64) (socket string) {
	t.Helper()
	cfg := daemon.Default()
	cfg.Link.Loss = loss
	cfg.Socket = filepath.Join(t.TempDir(), "pfd.sock")
	m, err := daemon.Emulated(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return cfg.Socket
}

// attach attaches to a node.
func attach(t testing.TB, socket string, node device.NodeID) *rdma.Endpoint {
	t.Helper()
	ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Node: node, AcceptGroup: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep
}

func listen(t testing.TB, ep *rdma.Endpoint, addr string) *stream.Listener {
	t.Helper()
	l, err := stream.Listen(ep, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestConn(t *testing.T) {
	socket := startPFD(t)
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	l := listen(t, to, ":0")
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		if c1, err = stream.Dial(t.Context(), from, l.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		if c2, err = l.Accept(); err != nil {
			return nil, nil, nil, err
		}
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}
