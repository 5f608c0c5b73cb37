package emu_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/proc"
	"golang.org/x/sys/unix"
)

// stuck is memory whose moves hang until they are let go, as those of a process
// that serves its own userfaultfd, or does not.
type stuck struct {
	emu.Memory
	hang    atomic.Bool
	release chan struct{}
	calls   atomic.Int32
}

func (s *stuck) WriteV(src [][]byte, va device.VA) (int, error) {
	if s.hang.Load() {
		s.calls.Add(1)
		<-s.release
	}
	return s.Memory.WriteV(src, va)
}

// pair is a domain on each of the two nodes, of one group.
type pair struct {
	mem   [2]*attach.Memory
	slots [2]int
	gens  [2]device.Generation
}

func attachPair(t *testing.T, e *emu.Engine, managers [2]*domain.Manager, drivers [2]*fault.Driver, group string, process *proc.Process, target emu.Memory) *pair {
	t.Helper()
	p := &pair{}
	for n := range p.mem {
		mem, err := attach.NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		p.mem[n] = mem
		m := emu.Memory(process)
		if n == 1 {
			m = target
		}
		done := make(chan error)
		e.Bus(n).Post(func() {
			d, err := managers[n].Create(domain.Request{UID: 1, Group: group})
			if err != nil {
				done <- err
				return
			}
			p.slots[n], p.gens[n] = d.Slot, d.Generation
			if err := e.Attach(n, d.Slot, &emu.Attachment{Pages: mem.Pages, Wake: mem.WakeFD(), Memory: m}); err != nil {
				done <- err
				return
			}
			done <- drivers[n].Add(fault.Target{Slot: d.Slot, PDID: d.PDID, Policy: fault.PIA, Pager: gup.New(process)})
		})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *pair) start(ch int, d device.Descriptor) {
	d.DstGeneration = p.gens[1]
	p.mem[0].Publish(ch, &d)
	for !p.mem[0].Ring(ch) {
		time.Sleep(10 * time.Microsecond)
	}
	if p.mem[0].Kicked() {
		_, _ = unix.Write(p.mem[0].WakeFD(), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (p *pair) done(ch int) uint32 { return p.mem[0].Done(ch) }

func (p *pair) wait(t *testing.T, ch int) uint32 {
	t.Helper()
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(20 * time.Microsecond) {
		if v := p.done(ch); v == device.DoneCompleted || v == device.DoneFailed {
			return v
		}
	}
	t.Fatal("a transfer does not end")
	return 0
}

// TestStuckMemoryStopsNobodyElse hangs the memory of one domain: the engine goes
// on for another, the stuck domain's bytes arrive when its memory does, and the
// engine serves it inline again after a while.
func TestStuckMemoryStopsNobodyElse(t *testing.T) {
	e, err := emu.New(emu.Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = e.Run(ctx) })
	process, err := proc.OpenPID(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := domain.NewDirectory(domain.DirectoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var managers [2]*domain.Manager
	var drivers [2]*fault.Driver
	for n := range managers {
		drivers[n] = fault.New(fault.Config{Bus: e.Bus(n), Node: device.NodeID(n), Now: e.Now})
		running.Go(func() { _ = e.Bus(n).Serve(ctx, drivers[n]) })
		if managers[n], err = domain.NewManager(e.Bus(n), device.NodeID(n), dir); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		e.Bus(n).Post(func() { done <- managers[n].Init() })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	hung := &stuck{Memory: process, release: make(chan struct{})}
	bad := attachPair(t, e, managers, drivers, "stuck", process, hung)
	good := attachPair(t, e, managers, drivers, "good", process, process)
	defer func() {
		cancel()
		running.Wait()
		for _, p := range []*pair{bad, good} {
			for _, m := range p.mem {
				_ = m.Close()
			}
		}
		_ = process.Close()
	}()

	const size = 64 << 10
	src, stuckDst, goodDst := suite.Map(t, size), suite.Map(t, size), suite.Map(t, size)
	for i := range src {
		src[i] = byte(i * 7)
	}
	hung.hang.Store(true)
	bad.start(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(stuckDst), Size: size, DstNode: 1})
	for began := time.Now(); hung.calls.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("the stuck domain's memory is not reached")
		}
	}
	for range 20 {
		suite.Drop(t, goodDst)
		good.start(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(goodDst), Size: size, DstNode: 1})
		if v := good.wait(t, 0); v != device.DoneCompleted {
			t.Fatalf("the other domain's transfer: done %d", v)
		}
		if !bytes.Equal(goodDst, src) {
			t.Fatal("the other domain's transfer has other bytes")
		}
	}
	if v := bad.done(0); v != device.DoneOngoing {
		t.Errorf("the stuck transfer is done %d before its memory has moved", v)
	}
	lost := make(chan uint64)
	e.Bus(1).Post(func() { lost <- e.Accesses(1).LeasesLost })
	if n := <-lost; n == 0 {
		t.Error("no lease was counted as lost")
	}

	// The memory comes back: whatever was late lands in the stuck domain alone,
	// and transfers go on there.
	hung.hang.Store(false)
	close(hung.release)
	if v := bad.wait(t, 0); v != device.DoneCompleted {
		st, _ := bad.mem[0].Status(0)
		t.Fatalf("the stuck transfer: done %d, status %d", v, st)
	}
	if !bytes.Equal(stuckDst, src) {
		t.Error("the stuck transfer has other bytes")
	}
	for range 50 {
		bad.start(1, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(stuckDst), Size: size, DstNode: 1})
		if v := bad.wait(t, 1); v != device.DoneCompleted {
			t.Fatalf("after the hang: done %d", v)
		}
	}
	if !bytes.Equal(goodDst, src) {
		t.Error("the late calls have changed the other domain's memory")
	}
}
