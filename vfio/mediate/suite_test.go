package mediate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/vfio/mediate"
	"github.com/exanet/pfd/vfio/user"
)

// machine is two emulated nodes behind vfio-user sockets, and their driver, as the suite uses it.
type machine struct {
	suite.Mediated
	server    *serve.Machine
	functions [2]mediate.Function // as connected first
}

// startServer serves two nodes, or those given, in a directory of the test.
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

// newMachineOf is newMachine with a configuration; its Connect is replaced.
func newMachineOf(t testing.TB, bare bool, cfg mediate.Config, opts ...user.Options) *machine {
	t.Helper()
	opts = append(opts, user.Options{})
	s, dir := startServer(t, bare)
	var fns [2]mediate.Function
	for i := range fns {
		connect := mediate.VFIOUser(serve.SocketPath(dir, i), opts[0])
		cfg.Connect = append(cfg.Connect, func(ctx context.Context, vectors []int) (f mediate.Function, err error) {
			f, err = connect(ctx, vectors)
			fns[i] = f
			return f, err
		})
	}
	m := running(t, cfg) // it connects the functions
	return &machine{Mediated: suite.Mediated{Machine: m}, server: s, functions: fns}
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

// TestFaultSuiteSmallestMessages is the suite with messages that have room for the access of one
// register and for one descriptor, over one socket. The usual ones have room for 1 MiB.
func TestFaultSuiteSmallestMessages(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
		return newMachine(t, bare, bare, user.Options{MaxTransfer: 8, MaxFDs: 1, NoTwin: true})
	})
}
