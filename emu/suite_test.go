package emu_test

import (
	"context"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
)

// machine is an engine as the suite needs it. If it is remote, a socketpair is between the driver and
// each node's registers.
type machine struct {
	*emu.Engine
	remote []*remoteBus
}

func newMachine(t testing.TB, remote, bare bool, off ...r5.Options) *machine {
	t.Helper()
	cfg := emu.Config{Nodes: 2, NoTXFIFO: bare}
	for _, o := range off {
		cfg.Firmware = o
	}
	e, err := emu.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	m := &machine{Engine: e}
	if remote {
		for n := range 2 {
			r, err := newRemote(e.Bus(n), e.Space(n))
			if err != nil {
				t.Fatal(err)
			}
			m.remote = append(m.remote, r)
		}
	}
	t.Cleanup(func() {
		cancel()
		<-done
		for _, r := range m.remote {
			r.Close()
		}
	})
	return m
}

func (m *machine) Bus(n int) device.Bus {
	if m.remote != nil {
		return m.remote[n]
	}
	return m.Engine.Bus(n)
}

func (m *machine) Space(n int) space.Machine {
	if m.remote != nil {
		return m.remote[n]
	}
	return m.Engine.Space(n)
}

func (m *machine) Attach(node, slot int, pages *attach.Pages, wake int, p *proc.Process) error {
	done := make(chan error)
	m.Engine.Bus(node).Post(func() {
		done <- m.Engine.Attach(node, slot, &emu.Attachment{Pages: pages, Wake: wake, Space: space.NewDirect(p, gup.New(p))})
	})
	return <-done
}

func (m *machine) Detach(node, slot int) {
	done := make(chan struct{})
	m.Engine.Bus(node).Post(func() { defer close(done); m.Engine.Detach(node, slot) })
	<-done
}

func TestFaultSuite(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine { return newMachine(t, false, bare) })
}

// TestFaultSuiteInPieces sends each block as several frames.
func TestFaultSuiteInPieces(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine {
		return newMachine(t, false, bare, r5.Options{NoWholeBlocks: true})
	})
}

// TestFaultSuiteOverSocket carries each register access and each vector over a socketpair: nothing above
// device.Bus depends on being in one process.
func TestFaultSuiteOverSocket(t *testing.T) {
	suite.Run(t, func(t *testing.T, bare bool) suite.Machine { return newMachine(t, true, bare) })
}
