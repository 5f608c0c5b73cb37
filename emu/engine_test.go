package emu_test

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"golang.org/x/sys/unix"
)

// rig is a machine of two nodes, with an attachment of this process on each, and the driver above it.
type rig struct {
	t        testing.TB
	engine   *emu.Engine
	process  *proc.Process
	drivers  []*fault.Driver
	managers []*domain.Manager
	sides    []*side
	closes   []func() // after the engine's end
	stop     func()   // ends the engine
}

type side struct {
	mem    *attach.Memory
	pages  *attach.Pages
	domain *domain.Domain
}

func newRig(t testing.TB, policy fault.Policy, prepare ...func(*emu.Engine)) *rig {
	t.Helper()
	return newRigOf(t, emu.Config{Nodes: 2}, policy, prepare...)
}

func newRigOf(t testing.TB, cfg emu.Config, policy fault.Policy, prepare ...func(*emu.Engine)) *rig {
	t.Helper()
	var options []domain.Option
	if cfg.Stall {
		options = append(options, domain.Stall())
	}
	e, err := emu.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range prepare {
		f(e)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Run(ctx) }()
	r := &rig{t: t, engine: e}
	if r.process, err = proc.OpenPID(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	dir, err := domain.NewDirectory(domain.DirectoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range cfg.Nodes {
		b := e.Bus(n)
		d := fault.New(fault.Config{Bus: b, Memory: e.Space(n), Node: e.Base() + device.NodeID(n), Now: e.Now})
		r.drivers = append(r.drivers, d)
		go func() { _ = b.Serve(ctx, d) }()
		m, err := domain.NewManager(b, e.Base()+device.NodeID(n), dir, options...)
		if err != nil {
			t.Fatal(err)
		}
		r.managers = append(r.managers, m)
		s := &side{}
		if s.mem, err = attach.NewThreadMemory(); err != nil {
			t.Fatal(err)
		}
		s.pages = s.mem.Pages
		r.on(n, func() {
			if err := m.Init(); err != nil {
				t.Error(err)
				return
			}
			if s.domain, err = m.Create(domain.Request{UID: uint32(os.Getuid()), PID: os.Getpid()}); err != nil {
				t.Error(err)
				return
			}
			if err := e.Attach(n, s.domain.Slot, &emu.Attachment{Pages: s.pages, Wake: s.mem.WakeFD(), Space: space.NewDirect(r.process, gup.New(r.process))}); err != nil {
				t.Error(err)
			}
			if err := d.Add(fault.Target{Slot: s.domain.Slot, PDID: s.domain.PDID, Policy: policy}); err != nil {
				t.Error(err)
			}
		})
		r.sides = append(r.sides, s)
	}
	r.stop = func() { cancel(); <-done }
	t.Cleanup(func() {
		r.stop()
		for _, f := range r.closes {
			f()
		}
		for _, s := range r.sides {
			_ = s.mem.Close()
		}
		_ = r.process.Close()
	})
	if t.Failed() {
		t.FailNow()
	}
	return r
}

func (r *rig) on(node int, f func()) {
	done := make(chan struct{})
	r.engine.Bus(node).Post(func() { defer close(done); f() })
	<-done
}

// write makes side 0 write size bytes, and waits until done is final.
func (r *rig) write(ch int, d device.Descriptor) uint32 {
	r.ring(ch, d)
	return r.wait(ch, d)
}

func (r *rig) ring(ch int, d device.Descriptor) {
	d.DstGeneration = r.sides[1].domain.Generation
	r.sides[0].ring(ch, d)
}

func (s *side) ring(ch int, d device.Descriptor) {
	s.pages.Publish(ch, &d)
	for !s.pages.Ring(ch) { // until the last doorbell is taken
		runtime.Gosched()
	}
	s.kick()
}

func (s *side) kick() {
	if s.pages.Kick() {
		_, _ = unix.Write(s.mem.WakeFD(), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (r *rig) wait(ch int, d device.Descriptor) uint32 {
	r.t.Helper()
	return r.sides[0].wait(r.t, ch)
}

func (s *side) wait(t testing.TB, ch int) uint32 {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		if v := s.pages.Done(ch); v == device.DoneCompleted || v == device.DoneFailed {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("the transfer on channel %d does not end", ch)
		}
		runtime.Gosched()
	}
}

// absent maps memory that has not been touched.
func absent(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func va(b []byte) device.VA { return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func TestWriteIntoAbsentMemory(t *testing.T) {
	for _, policy := range []fault.Policy{fault.PIO, fault.PI4, fault.PIA, fault.Adaptive} {
		r := newRig(t, policy)
		for _, size := range []int{1, 4096, 16384, 65536, 1 << 20} {
			src, dst := bytes.Repeat([]byte{0xa5, 1, 2, 3}, size/4+1)[:size], absent(t, size)
			if v := r.write(0, device.Descriptor{Src: va(src), Dst: va(dst), Size: uint32(size), DstNode: 1}); v != device.DoneCompleted {
				st, _ := r.sides[0].pages.Status(0)
				t.Fatalf("%v, %d bytes: done %d, status %d", policy, size, v, st)
			}
			if !bytes.Equal(src, dst) {
				t.Fatalf("%v, %d bytes: other bytes", policy, size)
			}
		}
		r.on(1, func() { t.Logf("%v: %+v", policy, r.drivers[1].Stats().Total) })
	}
}
