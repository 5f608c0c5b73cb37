// Package shadowtest pins memory as the kernel's VFIO does, without one: mapped memory is locked,
// counted in VmLck and bounded by RLIMIT_MEMLOCK. It is test support.
package shadowtest

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/space/proc"
)

// capIPCLock lets a thread lock more than the limit (linux/capability.h).
const capIPCLock = 14

// Pins locks pieces of memfds in this process. Its methods may be called on any
// goroutine; one call at a time is served, by a thread that the limit holds for.
type Pins struct {
	calls   chan func()
	pieces  map[uint64][]byte // by DMA address; the thread's
	process *proc.Process
}

// New returns Pins under a limit of so many bytes, until the test ends. Only one test of a
// process may use it at a time.
func New(t testing.TB, limit uint64) *Pins {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was); err != nil {
		t.Fatal(err)
	}
	if limit > was.Max {
		t.Skipf("the hard limit of locked memory is %d bytes: want %d (ulimit -Hl)", was.Max, limit)
	}
	Limit(t, limit)
	self, err := proc.OpenPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p := &Pins{calls: make(chan func()), pieces: map[uint64][]byte{}, process: self}
	ready := make(chan error)
	go p.serve(ready)
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.do(func() {
			for _, b := range p.pieces {
				_ = unix.Munmap(b) // cannot fail: the very slice that was mapped
			}
		})
		close(p.calls)
		_ = self.Close()
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Limit sets how much may be locked from now on, up to the hard limit.
func Limit(t testing.TB, bytes uint64) {
	t.Helper()
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l)
	if err == nil {
		l.Cur = bytes
		err = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &l)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serve runs the calls on a thread without CAP_IPC_LOCK, which ends with it.
func (p *Pins) serve(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: nobody else gets the thread
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	err := unix.Capget(&h, &d[0])
	if err == nil {
		d[0].Effective &^= 1 << capIPCLock
		err = unix.Capset(&h, &d[0])
	}
	ready <- err
	for f := range p.calls {
		f()
	}
}

func (p *Pins) do(f func()) {
	done := make(chan struct{})
	p.calls <- func() { defer close(done); f() }
	<-done
}

// Map locks a piece of a memfd; ENOMEM says that the limit forbids it.
func (p *Pins) Map(addr, size uint64, fd int, offset uint64) (err error) {
	p.do(func() {
		var b []byte
		if b, err = unix.Mmap(fd, int64(offset), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return
		}
		if err = unix.Mlock(b); err != nil {
			_ = unix.Munmap(b)
			err = fmt.Errorf("pinning %d bytes: %w", size, err)
			return
		}
		p.pieces[addr] = b
	})
	return err
}

// Unmap unlocks every piece inside a range.
func (p *Pins) Unmap(addr, size uint64) (err error) {
	p.do(func() {
		for a := addr; a < addr+size; a += uint64(os.Getpagesize()) {
			if b := p.pieces[a]; b != nil && err == nil {
				delete(p.pieces, a)
				err = unix.Munmap(b)
			}
		}
	})
	return err
}

// Locked returns the kernel's count, VmLck and VmPin of this process, while no call is in
// progress; it also calls look then.
func (p *Pins) Locked(look func()) (n uint64, err error) {
	p.do(func() {
		look()
		var v int64
		v, err = p.process.Locked()
		n = uint64(v)
	})
	return n, err
}
