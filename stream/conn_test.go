package stream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
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
	socket = filepath.Join(t.TempDir(), "pfd.sock")
	d, err := newPFD(socket, loss)
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
	return socket
}

func newPFD(socket string, loss float64) (*daemon.Daemon, error) {
	cfg := daemon.Default()
	cfg.Link.Loss = loss
	cfg.Socket = socket
	m, err := daemon.Emulated(cfg)
	if err != nil {
		return nil, err
	}
	return daemon.New(cfg, m)
}

// pfdEnv names the socket of a process that is a pfd.
const pfdEnv = "STREAM_TEST_PFD"

// startApart runs a pfd in a process of its own: the memory of its nodes is not this process's.
func startApart(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "pfd.sock")
	startSelf(t, pfdEnv+"="+socket)
	return socket
}

// runPFD is that process. It ends with its standard input.
func runPFD(socket string) error {
	d, err := newPFD(socket, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("ready")
	return d.Run(ctx)
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
