package emu_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/suite"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"golang.org/x/sys/unix"
)

var errRefused = errors.New("bad address")

// refusing is memory with one page that is resident and, according to its tables, accessible, but
// beyond whose beginning no move succeeds.
type refusing struct {
	space.Memory
	page  atomic.Uint64
	moves atomic.Int32
}

func (m *refusing) until(bufs [][]byte, va device.VA) [][]byte {
	page := device.VA(m.page.Load())
	var head [][]byte
	for _, b := range bufs {
		if va <= page && page < va+device.VA(len(b)) {
			m.moves.Add(1)
			return append(head, b[:page-va])
		}
		head = append(head, b)
		va += device.VA(len(b))
	}
	return nil
}

func (m *refusing) move(bufs [][]byte, va device.VA, do func([][]byte, device.VA) (int, error)) (int, error) {
	head := m.until(bufs, va)
	if head == nil {
		return do(bufs, va)
	}
	if len(bytes.Join(head, nil)) == 0 {
		return 0, errRefused
	}
	n, err := do(head, va)
	return n, errors.Join(err, errRefused)
}

func (m *refusing) WriteV(src [][]byte, va device.VA) (int, error) {
	return m.move(src, va, m.Memory.WriteV)
}

func (m *refusing) ReadV(dst [][]byte, va device.VA) (int, error) {
	return m.move(dst, va, m.Memory.ReadV)
}

// A page that the page-in finds resident and permitted, but that no move can access, ends its transfer
// with status 8 within the limit of RAPFs, at the destination and at the source. Other transfers of
// the same process complete meanwhile.
func TestMoveThatIsAlwaysRefused(t *testing.T) {
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
	m := &refusing{Memory: process}
	p := attachPair(t, e, managers, drivers, "refused", process, m)
	defer func() {
		cancel()
		running.Wait()
		for _, m := range p.mem {
			_ = m.Close()
		}
		_ = process.Close()
	}()
	count := func(node int, c device.Counter) uint64 {
		v := make(chan uint64)
		e.Bus(node).Post(func() {
			n, _ := e.Bus(node).Window(device.PL).Read64(c.Offset())
			v <- n
		})
		return <-v
	}

	const size = 64 << 10
	src, dst, other := suite.Map(t, size), suite.Map(t, size), suite.Map(t, size)
	for i := range src {
		src[i] = byte(i*7 + 1)
	}
	m.page.Store(uint64(suite.VA(dst)) + 5*device.PageSize)
	p.start(0, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(dst), Size: size, DstNode: 1})
	p.start(1, device.Descriptor{Src: suite.VA(src), Dst: suite.VA(other), Size: size, DstNode: 1})
	if v := p.wait(t, 1); v != device.DoneCompleted || !bytes.Equal(other, src) {
		t.Errorf("the other transfer: done %d", v)
	}
	v := p.wait(t, 0)
	if status, _ := p.mem[0].Status(0); v != device.DoneFailed || status != device.StatusDecode {
		t.Errorf("done %d, status %d, want 3, %d", v, status, device.StatusDecode)
	}
	if n := count(0, device.RAPFRx); n > 256 {
		t.Errorf("%d RAPFs, %d moves for one block", n, m.moves.Load())
	}
	t.Logf("%d RAPFs, %d moves refused", count(0, device.RAPFRx), m.moves.Load())
	if bytes.Equal(dst[5*device.PageSize:6*device.PageSize], src[5*device.PageSize:6*device.PageSize]) {
		t.Error("the page that is refused was written")
	}

	// At the source: node 1 reads the page.
	m.moves.Store(0)
	m.page.Store(uint64(suite.VA(src)) + 9*device.PageSize)
	p.mem[1].Publish(0, &device.Descriptor{Src: suite.VA(src), Dst: suite.VA(other), Size: size, DstNode: 0, DstGeneration: p.gens[0]})
	p.mem[1].Ring(0)
	if p.mem[1].Kick() {
		_, _ = unix.Write(p.mem[1].WakeFD(), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	back := &pair{mem: [2]*attach.Memory{p.mem[1], p.mem[0]}}
	v = back.wait(t, 0)
	if status, _ := p.mem[1].Status(0); v != device.DoneFailed || status != device.StatusDecode {
		t.Errorf("a source: done %d, status %d, want 3, %d", v, status, device.StatusDecode)
	}
	t.Logf("source: %d RAPFs, %d moves refused", count(1, device.RAPFRx), m.moves.Load())
}
