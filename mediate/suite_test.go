package mediate_test

import (
	"context"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/mediate"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/vfio/user"
)

// machine is two emulated nodes behind vfio-user sockets, and their driver, as
// the suite takes it.
type machine struct {
	*mediate.Machine
	server *serve.Machine
}

// startServer serves two nodes in a directory of the test's.
func startServer(t testing.TB, bare bool) (*serve.Machine, string) {
	t.Helper()
	s, err := serve.New(serve.Config{Nodes: 2, NoTXFIFO: bare})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, dir, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, dir
}

func newMachine(t testing.TB, bare, workers bool, opts ...user.Options) *machine {
	t.Helper()
	opts = append(opts, user.Options{})
	s, dir := startServer(t, bare)
	m, err := mediate.New(t.Context(), mediate.Config{
		Connect: []mediate.Connect{
			mediate.VFIOUserWith(serve.SocketPath(dir, 0), opts[0]), mediate.VFIOUserWith(serve.SocketPath(dir, 1), opts[0]),
		},
		Workers: workers,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return &machine{Machine: m, server: s}
}

// on runs f on the owner.
func (m *machine) on(node int, f func()) {
	done := make(chan struct{})
	m.Bus(node).Post(func() { defer close(done); f() })
	<-done
}

func (m *machine) Attach(node, slot int, pages *attach.Pages, wake int, _ *proc.Process) (err error) {
	m.on(node, func() { err = m.Machine.Attach(node, slot, &mediate.Attachment{Pages: pages, Wake: wake}) })
	return err
}

func (m *machine) Detach(node, slot int) {
	m.on(node, func() { m.Machine.Detach(node, slot) })
}

func (m *machine) Pager(node, slot int) fault.Pager { return pager{m, node, slot} }

type pager struct {
	m          *machine
	node, slot int
}

func (p pager) PageIn(va device.VA, pages int, write bool) gup.Result {
	mem, err := p.m.Memory(p.node)
	if err != nil {
		return gup.Result{Err: err}
	}
	return mem.PageIn(p.slot, va, pages, write)
}

func (m *machine) Share(node, slot int, b []byte, fd int, write bool) error {
	mem, err := m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Share(slot, suite.VA(b), uint64(len(b)), fd, 0, write)
}

func (m *machine) Unshare(node, slot int, b []byte) error {
	mem, err := m.Memory(node)
	if err != nil {
		return err
	}
	return mem.Unshare(slot, suite.VA(b), uint64(len(b)))
}

func (m *machine) Forget(node, slot int, b []byte) {
	if mem, err := m.Memory(node); err == nil {
		mem.Forget(slot, suite.VA(b), uint64(len(b)))
	}
}

// TestFaultSuite is the fault suite over vfio-user sockets and shadow tables.
func TestFaultSuite(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine { return newMachine(t, bare, bare) })
}

// TestFaultSuiteSmallestMessages is the same with messages that have room for one
// register's access and one descriptor, over one socket. The usual ones have room
// for 1 MiB.
func TestFaultSuiteSmallestMessages(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
		return newMachine(t, bare, bare, user.Options{MaxTransfer: 8, MaxFDs: 1, NoTwin: true})
	})
}
