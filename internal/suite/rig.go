// Package suite is the fault suite: writes between two processes' memory in
// every state, run against whatever implements device.Bus. It is test support.
package suite

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/proc"
	"golang.org/x/sys/unix"
)

// Machine is what the suite needs of a machine of two nodes or more.
type Machine interface {
	// Bus gives the way to a node, as the driver uses it.
	Bus(node int) device.Bus
	// Attach ties a process to a slot. It may be called on any goroutine.
	Attach(node, slot int, pages *attach.Pages, wake int, p *proc.Process) error
	// Detach undoes Attach: nothing touches pages or process any more.
	Detach(node, slot int)
	// Now gives the machine's time, ns.
	Now() int64
}

// Rig is a machine with this process attached on two of its nodes, and the
// driver above it.
type Rig struct {
	t       testing.TB
	machine Machine
	process *proc.Process
	Drivers [2]*fault.Driver
	sides   [2]*side
}

type side struct {
	mem    *attach.Memory
	domain *domain.Domain
}

// NewRig sets a machine up as pfd does it.
func NewRig(t testing.TB, m Machine, policy fault.Policy, timeoutSource bool) *Rig {
	t.Helper()
	r := &Rig{t: t, machine: m}
	p, err := proc.OpenPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	r.process = p
	dir, err := domain.NewDirectory(domain.DirectoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served, serving := make(chan struct{}, len(r.sides)), 0
	t.Cleanup(func() {
		cancel()
		for range serving {
			<-served
		}
		for n, s := range r.sides {
			if s != nil && s.domain != nil {
				m.Detach(n, s.domain.Slot)
			}
			if s != nil {
				_ = s.mem.Close()
			}
		}
		_ = p.Close()
	})
	for n := range r.sides {
		b := m.Bus(n)
		d := fault.New(fault.Config{Bus: b, Node: device.NodeID(n), Now: m.Now, TimeoutSource: timeoutSource})
		r.Drivers[n] = d
		serving++
		go func() { _ = b.Serve(ctx, d); served <- struct{}{} }()
		manager, err := domain.NewManager(b, device.NodeID(n), dir)
		if err != nil {
			t.Fatal(err)
		}
		s := &side{}
		if s.mem, err = attach.NewMemory(); err != nil {
			t.Fatal(err)
		}
		r.sides[n] = s
		r.On(n, func() {
			if err = manager.Init(); err != nil {
				return
			}
			s.domain, err = manager.Create(domain.Request{UID: uint32(os.Getuid()), PID: os.Getpid()})
			if err == nil && timeoutSource {
				err = b.Window(device.PL).Write32(device.PLTimeoutUS, 1000)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Attach(n, s.domain.Slot, s.mem.Pages, s.mem.WakeFD(), p); err != nil {
			t.Fatal(err)
		}
		r.On(n, func() {
			err = d.Add(fault.Target{Slot: s.domain.Slot, PDID: s.domain.PDID, Policy: policy, Pager: gup.New(p)})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// On runs f on the goroutine that owns a node's windows, and waits for it.
func (r *Rig) On(node int, f func()) {
	done := make(chan struct{})
	r.machine.Bus(node).Post(func() { defer close(done); f() })
	<-done
}

// Count reads a counter of a node.
func (r *Rig) Count(node int, c device.Counter) (v uint64) {
	r.On(node, func() { v, _ = r.machine.Bus(node).Window(device.PL).Read64(c.Offset()) })
	return v
}

// Start publishes a descriptor on a channel of node 0's process and rings, as
// soon as an earlier doorbell is taken.
func (r *Rig) Start(ch int, d device.Descriptor) {
	p := r.sides[0].mem.Pages
	p.Publish(ch, &d)
	for deadline := time.Now().Add(5 * time.Second); !p.Ring(ch); {
		if time.Now().After(deadline) {
			r.t.Fatal("the doorbell is not taken")
		}
	}
	if p.Kicked() {
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(r.sides[0].mem.WakeFD(), one)
	}
}

// Wait spins until the transfer on a channel is over, and gives done and status.
func (r *Rig) Wait(ch int) (done uint32, status uint8) {
	p := r.sides[0].mem.Pages
	began := time.Now()
	for {
		if v := p.Done(ch); v == device.DoneCompleted || v == device.DoneFailed {
			status, _ = p.Status(ch)
			return v, status
		}
		switch waited := time.Since(began); {
		case waited > 20*time.Second:
			for n := range r.sides {
				r.On(n, func() {
					r.t.Logf("node %d: %+v; last records %+v", n, r.Drivers[n].Stats().Total, r.Drivers[n].Records(4))
				})
				for c := range device.Counters {
					if v := r.Count(n, c); v != 0 {
						r.t.Logf("node %d: %v %d", n, c, v)
					}
				}
			}
			r.t.Fatalf("the transfer on channel %d does not end", ch)
		case waited > 50*time.Microsecond:
			// Two processors: whoever serves us may want this one.
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// Write does a transfer from beginning to end.
func (r *Rig) Write(ch int, d device.Descriptor) (done uint32, status uint8) {
	r.Start(ch, d)
	return r.Wait(ch)
}

// Map gives n bytes of memory that nobody has touched, unmapped at the end.
func Map(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	// Huge pages would bring neighbours in with the first fault.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// Drop makes all pages of b absent again.
func Drop(t testing.TB, b []byte) {
	t.Helper()
	if err := unix.Madvise(b, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// VA gives the address of b's first byte.
func VA(b []byte) device.VA { return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
