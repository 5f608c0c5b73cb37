// Package suite is the fault suite: writes between two processes' memory in every state, over
// any implementation of device.Bus. It is test support.
package suite

import (
	"context"
	"encoding/binary"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"golang.org/x/sys/unix"
)

// Machine is the interface of the machine under test, which has at least two nodes.
type Machine interface {
	// Bus returns the node's bus for the driver.
	Bus(node int) device.Bus
	// Space pages in for the driver of a node.
	Space(node int) space.Machine
	// Attach attaches a process to a slot. It is safe for concurrent use.
	Attach(node, slot int, pages *attach.Pages, wake int, p *proc.Process) error
	// Detach undoes Attach: the machine no longer accesses pages or process.
	Detach(node, slot int)
	// Now returns the machine's time in ns.
	Now() int64
}

// Shadow is a Machine that does not use the processes' own page tables: memory is shared with
// it, and pfd keeps tables for it.
type Shadow interface {
	Machine
	// Tables returns the value of TTBR0 for a slot's context bank.
	Tables(node, slot int) uint64
	// Share lets a slot access b, which maps fd from offset 0. Unshare undoes exactly that, and
	// Forget says that pages of b were removed.
	Share(node, slot int, b []byte, fd int, write bool) error
	Unshare(node, slot int, b []byte) error
	Forget(node, slot int, b []byte)
	// Asked says that a slot's process is asked to page in by itself. It is called on the
	// goroutine that owns the node's windows.
	Asked(node, slot int, f netlink.Fault)
}

// Pinning is a Machine whose device pins memory that is mapped for it.
type Pinning interface {
	Machine
	// MayPin returns how many bytes of the process the device may lock or pin.
	MayPin() int64
}

// Rig is a machine with this process attached to two of its nodes, and the drivers of both.
type Rig struct {
	t       testing.TB
	machine Machine
	shadow  Shadow // nil: the machine sees the process's own tables
	process *proc.Process
	Drivers [2]*fault.Driver
	sides   [2]*side
	files   map[*byte]shared // by the address of the first byte
}

type side struct {
	mem    *attach.Memory
	domain *domain.Domain
}

// NewRig sets a machine up as pfd does.
func NewRig(t testing.TB, m Machine, policy fault.Policy, timeoutSource bool) *Rig {
	t.Helper()
	r := &Rig{t: t, machine: m, files: map[*byte]shared{}}
	r.shadow, _ = m.(Shadow)
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
		d := fault.New(fault.Config{Bus: b, Memory: m.Space(n), Node: device.NodeID(n), Now: m.Now, TimeoutSource: timeoutSource})
		r.Drivers[n] = d
		serving++
		go func() { _ = b.Serve(ctx, d); served <- struct{}{} }()
		var opts []domain.Option
		if r.shadow != nil {
			opts = append(opts, domain.WithTables(func(slot int) uint64 { return r.shadow.Tables(n, slot) }))
		}
		manager, err := domain.NewManager(b, device.NodeID(n), dir, opts...)
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
			err = d.Add(fault.Target{Slot: s.domain.Slot, PDID: s.domain.PDID, Policy: policy})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// On runs f on the goroutine that owns a node's windows, and waits until it returns.
func (r *Rig) On(node int, f func()) {
	done := make(chan struct{})
	r.machine.Bus(node).Post(func() { defer close(done); f() })
	<-done
}

// Count returns a counter of a node.
func (r *Rig) Count(node int, c device.Counter) (v uint64) {
	r.On(node, func() { v, _ = r.machine.Bus(node).Window(device.PL).Read64(c.Offset()) })
	return v
}

// Start publishes a descriptor on a channel of node 0's process and rings the doorbell when the
// previous one has been taken.
func (r *Rig) Start(ch int, d device.Descriptor) {
	p := r.sides[0].mem.Pages
	d.DstGeneration = r.sides[1].domain.Generation
	p.Publish(ch, &d)
	for deadline := time.Now().Add(2 * time.Minute); !p.Ring(ch); {
		if time.Now().After(deadline) {
			r.t.Fatal("the doorbell is not taken")
		}
	}
	if p.Kick() {
		one := binary.NativeEndian.AppendUint64(nil, 1)
		_, _ = unix.Write(r.sides[0].mem.WakeFD(), one)
	}
}

// Wait spins until the transfer on a channel ends, and returns done and status.
func (r *Rig) Wait(ch int) (done uint32, status uint8) {
	p := r.sides[0].mem.Pages
	began := time.Now()
	for {
		if v := p.Done(ch); v == device.DoneCompleted || v == device.DoneFailed {
			status, _ = p.Status(ch)
			r.unpinned()
			return v, status
		}
		switch waited := time.Since(began); {
		case waited > 2*time.Minute:
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
			// There may be only two processors: leave one to the serving thread.
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// unpinned fails the test if memory is locked or pinned after a transfer. VmLck and VmPin of
// the process, which holds machine, driver and buffers, must stay 0, or below the limit of a
// device that pins.
func (r *Rig) unpinned() {
	bound := int64(0)
	if m, ok := r.machine.(Pinning); ok {
		bound = m.MayPin()
	}
	n, err := r.process.Locked()
	if err != nil {
		r.t.Fatal(err)
	}
	if n > bound {
		r.t.Fatalf("%d bytes are locked or pinned after a transfer, want %d at most", n, bound)
	}
}

// Write performs a whole transfer.
func (r *Rig) Write(ch int, d device.Descriptor) (done uint32, status uint8) {
	r.Start(ch, d)
	return r.Wait(ch)
}

// Map returns n bytes of untouched memory, which is unmapped when the test ends.
func (r *Rig) Map(t testing.TB, n int) []byte {
	t.Helper()
	flags, fd, want := unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, n
	if r.shadow != nil {
		n = (n + device.PageSize - 1) &^ (device.PageSize - 1)
		flags = unix.MAP_SHARED
		var err error
		if fd, err = unix.MemfdCreate("suite", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
			err = unix.Ftruncate(fd, int64(n))
		}
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	// The first fault of a huge page would make neighbouring pages present.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	if r.shadow != nil {
		r.share(t, b, fd, true)
	}
	t.Cleanup(func() {
		if r.shadow != nil {
			_ = unix.Close(fd)
		}
		_ = unix.Munmap(b)
	})
	return b[:want]
}

// share shares b on both nodes until the rig's test ends.
func (r *Rig) share(t testing.TB, b []byte, fd int, write bool) {
	t.Helper()
	for n, s := range r.sides {
		if err := r.shadow.Share(n, s.domain.Slot, b, fd, write); err != nil {
			t.Fatal(err)
		}
	}
	r.files[unsafe.SliceData(b)] = shared{b, fd}
}

// unshare stops sharing b and returns its file.
func (r *Rig) unshare(t testing.TB, b []byte) shared {
	t.Helper()
	f := r.files[unsafe.SliceData(b)]
	for n, s := range r.sides {
		if err := r.shadow.Unshare(n, s.domain.Slot, f.b); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// shared is a mapping that is shared with the machine.
type shared struct {
	b  []byte
	fd int
}

// ReadOnly removes the right to write b, a whole mapping of Map.
func (r *Rig) ReadOnly(t testing.TB, b []byte) {
	t.Helper()
	if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if r.shadow != nil {
		f := r.unshare(t, b)
		r.share(t, f.b, f.fd, false)
	}
}

// Cut removes all rights to b, a whole mapping of Map, from byte n on.
func (r *Rig) Cut(t testing.TB, b []byte, n int) {
	t.Helper()
	if err := unix.Mprotect(b[n:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if r.shadow != nil {
		f := r.unshare(t, b)
		r.share(t, b[:n], f.fd, true)
	}
}

// Drop makes all pages of b absent, for the device as well.
func (r *Rig) Drop(t testing.TB, b []byte) {
	t.Helper()
	advice := unix.MADV_DONTNEED
	if r.shadow != nil {
		advice = unix.MADV_REMOVE
		b = b[:min((len(b)+device.PageSize-1)&^(device.PageSize-1), cap(b))]
	}
	if err := unix.Madvise(b, advice); err != nil {
		t.Fatal(err)
	}
	if r.shadow != nil {
		for n, s := range r.sides {
			r.shadow.Forget(n, s.domain.Slot, b)
		}
	}
}

// Present makes the resident pages of b present for the device.
func (r *Rig) Present(t testing.TB, b []byte) {
	t.Helper()
	if r.shadow == nil {
		return
	}
	for n, s := range r.sides {
		for at := 0; at < len(b); at += device.PageSize {
			done := make(chan struct{})
			op := &space.Op{Kind: space.PageIn, VA: VA(b[at:]), Pages: 1, Write: true, Done: func() { close(done) }}
			r.On(n, func() { r.machine.Space(n).PageIn(s.domain.Slot, op, false) })
			if <-done; op.Paged.Err != nil {
				t.Fatal(op.Paged.Err)
			}
		}
	}
}

// VA returns the address of b's first byte.
func VA(b []byte) device.VA { return device.VA(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Map returns n bytes of untouched private memory, which is unmapped when the test ends. It is
// for tests without a Rig.
func Map(t testing.TB, n int) []byte {
	t.Helper()
	return (&Rig{}).Map(t, n)
}

// Drop makes all pages of private memory absent.
func Drop(t testing.TB, b []byte) {
	t.Helper()
	(&Rig{}).Drop(t, b)
}
