package emu_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/memfd"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/view"
	"golang.org/x/sys/unix"
)

// stuck is memory whose moves hang until they are released, like those of a process that serves its own
// userfaultfd, or fails to.
type stuck struct {
	space.Memory
	hang    atomic.Bool
	release *gate
	calls   atomic.Int32
}

func (s *stuck) WriteV(src [][]byte, va device.VA) (int, error) {
	if s.hang.Load() {
		s.calls.Add(1)
		s.release.wait()
	}
	return s.Memory.WriteV(src, va)
}

// pair is a domain on each of the two nodes, of one group.
type pair struct {
	mem   [2]*attach.Memory
	slots [2]int
	gens  [2]device.Generation
}

func attachPair(t *testing.T, e *emu.Engine, managers [2]*domain.Manager, drivers [2]*fault.Driver, group string, process *proc.Process, target space.Memory) *pair {
	t.Helper()
	return attachUser(t, e, managers, drivers, group, process, emu.Attachment{Space: space.NewDirect(target, gup.New(process))})
}

// attachUser attaches a process to node 0, and a target to node 1.
func attachUser(t *testing.T, e *emu.Engine, managers [2]*domain.Manager, drivers [2]*fault.Driver, group string, process *proc.Process, target emu.Attachment) *pair {
	t.Helper()
	p := &pair{}
	for n := range p.mem {
		mem, err := attach.NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		p.mem[n] = mem
		a := emu.Attachment{Space: space.NewDirect(process, gup.New(process))}
		if n == 1 {
			a = target
		}
		a.Pages, a.Wake = mem.Pages, mem.WakeFD()
		done := make(chan error)
		e.Bus(n).Post(func() {
			d, err := managers[n].Create(domain.Request{UID: 1, Group: group})
			if err != nil {
				done <- err
				return
			}
			p.slots[n], p.gens[n] = d.Slot, d.Generation
			if err := e.Attach(n, d.Slot, &a); err != nil {
				done <- err
				return
			}
			done <- drivers[n].Add(fault.Target{Slot: d.Slot, PDID: d.PDID, Policy: fault.PIA})
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
	if p.mem[0].Kick() {
		_, _ = unix.Write(p.mem[0].WakeFD(), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (p *pair) done(ch int) uint32 { return p.mem[0].Done(ch) }

func (p *pair) wait(t *testing.T, ch int) uint32 {
	t.Helper()
	for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Microsecond) {
		if v := p.done(ch); v == device.DoneCompleted || v == device.DoneFailed {
			return v
		}
	}
	t.Fatal("a transfer does not end")
	return 0
}

// startPairs starts an engine of two nodes for pairs of processes, until end.
func startPairs(t *testing.T) (e *emu.Engine, managers [2]*domain.Manager, drivers [2]*fault.Driver, process *proc.Process, end func(...*pair)) {
	t.Helper()
	e, err := emu.New(emu.Config{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = e.Run(ctx) })
	process, err = proc.OpenPID(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := domain.NewDirectory(domain.DirectoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range managers {
		drivers[n] = fault.New(fault.Config{Bus: e.Bus(n), Memory: e.Space(n), Node: device.NodeID(n), Now: e.Now})
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
	return e, managers, drivers, process, func(pairs ...*pair) {
		cancel()
		running.Wait()
		for _, p := range pairs {
			for _, m := range p.mem {
				_ = m.Close()
			}
		}
		_ = process.Close()
	}
}

// TestStuckMemoryStopsNobodyElse hangs the memory of one domain. The engine continues for another, the
// stuck domain's bytes arrive when its memory responds, and the engine serves it inline again after a
// while.
func TestStuckMemoryStopsNobodyElse(t *testing.T) {
	e, managers, drivers, process, end := startPairs(t)
	hung := &stuck{Memory: process, release: newGate(t)}
	bad := attachPair(t, e, managers, drivers, "stuck", process, hung)
	good := attachPair(t, e, managers, drivers, "good", process, process)
	defer func() { end(bad, good) }()

	const size = 64 << 10
	src, stuckDst, goodDst := suite.Map(t, size), suite.Map(t, size), suite.Map(t, size)
	for i := range src {
		src[i] = byte(i * 7)
	}
	hung.hang.Store(true)
	bad.start(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(stuckDst), Size: size, DstNode: 1})
	for began := time.Now(); hung.calls.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
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

	// The memory responds: the late bytes arrive in the stuck domain alone, and its transfers
	// continue.
	hung.hang.Store(false)
	hung.release.open()
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

// seen is shared memory that counts its touches; a touch hangs if hang is set.
type seen struct {
	*view.View
	hang    atomic.Bool
	release *gate
	touches atomic.Int32
}

func (s *seen) Has(va device.VA, pages int, write bool) bool {
	s.touches.Add(1)
	if s.hang.Load() {
		s.release.wait()
	}
	return s.View.Has(va, pages, write)
}

// TestTouchThatHangs: a touch of shared memory hangs, like that of a page that its process is punching
// out. The engine continues for others. Memory that this user's processes share is then accessed by
// their page tables rather than touched, and the late touch has its result.
func TestTouchThatHangs(t *testing.T) {
	e, managers, drivers, process, end := startPairs(t)
	const size = 64 << 10
	src := suite.Map(t, size)
	for i := range src {
		src[i] = byte(i * 7)
	}
	var pairs []*pair
	release := newGate(t)
	letGo := sync.OnceFunc(release.open)
	defer func() { letGo(); end(pairs...) }()
	type target struct {
		*pair
		*seen
		*counted
		dst []byte
	}
	attachTarget := func(name string, uid uint32) target {
		v, err := view.New()
		if err != nil {
			t.Skipf("this kernel gives no view: Linux 5.14 does: %v", err)
		}
		t.Cleanup(func() { _ = v.Close() })
		fd, err := memfd.New(name, size, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		dst, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err == nil {
			t.Cleanup(func() { _ = unix.Munmap(dst) })
			err = v.Share(suite.VA(dst), size, fd, 0, true)
		}
		if err != nil {
			t.Fatal(err)
		}
		s, c := &seen{View: v, release: release}, &counted{Process: process}
		p := attachUser(t, e, managers, drivers, name, process, emu.Attachment{Space: space.NewShared(s, space.NewDirect(c, gup.New(process)), false), UID: uid})
		pairs = append(pairs, p)
		return target{p, s, c, dst}
	}
	bad, other, good := attachTarget("bad", 1), attachTarget("other", 1), attachTarget("good", 2)
	write := func(to target, want byte) {
		t.Helper()
		src[5] = want
		to.start(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(to.dst), Size: size, DstNode: 1})
		if v := to.wait(t, 0); v != device.DoneCompleted || !bytes.Equal(to.dst, src) {
			t.Fatalf("done %d, the bytes are there: %v", v, bytes.Equal(to.dst, src))
		}
	}
	for _, to := range []target{bad, other, good} {
		write(to, 1) // enters the pages
		before := to.moves.Load()
		if write(to, 2); to.moves.Load() != before {
			t.Fatal("present shared memory is not moved by the view")
		}
	}
	bad.hang.Store(true)
	at, want := bad.touches.Load(), bytes.Clone(src)
	bad.start(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(bad.dst), Size: size, DstNode: 1})
	for began := time.Now(); bad.touches.Load() == at; time.Sleep(time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			t.Fatal("the shared memory is not touched")
		}
	}
	touched, moves := good.touches.Load(), good.moves.Load()
	for i := range byte(5) {
		write(good, 3+i)
	}
	if good.touches.Load() == touched || good.moves.Load() != moves {
		t.Error("the memory of another user is not touched any more")
	}
	touched, moves = other.touches.Load(), other.moves.Load()
	write(other, 9)
	if other.touches.Load() != touched || other.moves.Load() == moves {
		t.Error("what the user's other process shares is touched still")
	}
	lost := make(chan uint64)
	e.Bus(1).Post(func() { lost <- e.Accesses(1).LeasesLost })
	if n := <-lost; n == 0 { // others may sleep for long on a busy machine
		t.Error("no lease was lost")
	}
	bad.hang.Store(false)
	letGo()
	if v := bad.wait(t, 0); v != device.DoneCompleted || !bytes.Equal(bad.dst, want) {
		t.Errorf("the transfer that hung: done %d, its bytes are there: %v", v, bytes.Equal(bad.dst, want))
	}
	at = bad.touches.Load()
	if write(bad, 10); bad.touches.Load() != at {
		t.Error("what hung is touched still")
	}
}
