package mediate_test

import (
	"context"
	"errors"
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
	server    *serve.Machine
	functions [2]mediate.Function // as connected first
}

// startServer serves two nodes, or as many as are given, in a directory of the test's.
func startServer(t testing.TB, bare bool, nodes ...int) (*serve.Machine, string) {
	t.Helper()
	s, err := serve.New(serve.Config{Nodes: append(nodes, 2)[0], NoTXFIFO: bare})
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
	return newMachineOf(t, bare, mediate.Config{Workers: workers}, opts...)
}

// newMachineOf is newMachine with a configuration, but for its Connect.
func newMachineOf(t testing.TB, bare bool, cfg mediate.Config, opts ...user.Options) *machine {
	t.Helper()
	opts = append(opts, user.Options{})
	s, dir := startServer(t, bare)
	var fns [2]mediate.Function
	for i := range fns {
		connect := mediate.VFIOUserWith(serve.SocketPath(dir, i), opts[0])
		cfg.Connect = append(cfg.Connect, func(ctx context.Context, vectors []int) (f mediate.Function, err error) {
			f, err = connect(ctx, vectors)
			fns[i] = f
			return f, err
		})
	}
	m := running(t, cfg) // it connects the functions
	return &machine{Machine: m, server: s, functions: fns}
}

// running is a machine that runs until the test ends.
func running(t testing.TB, cfg mediate.Config) *mediate.Machine {
	t.Helper()
	m, err := mediate.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, m.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
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

func (p pager) Again(va device.VA, write bool) gup.Result {
	mem, err := p.m.Memory(p.node)
	if err != nil {
		return gup.Result{Err: err}
	}
	return mem.Again(p.slot, va, write)
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

// TestFaultSuite is the fault suite over vfio-user sockets and shadow tables, by
// queues in memory and by registers.
func TestFaultSuite(t *testing.T) {
	for name, registers := range map[string]bool{"queues": false, "registers": true} {
		t.Run(name, func(t *testing.T) {
			suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
				return newMachineOf(t, bare, mediate.Config{Workers: bare, Registers: registers})
			})
		})
	}
}

// TestFaultSuiteSmallestMessages is the same with messages that have room for one
// register's access and one descriptor, over one socket. The usual ones have room
// for 1 MiB.
func TestFaultSuiteSmallestMessages(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
		return newMachine(t, bare, bare, user.Options{MaxTransfer: 8, MaxFDs: 1, NoTwin: true})
	})
}
