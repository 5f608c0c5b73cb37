package user

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// mapTime is how long a caller waits for a file to be mapped; it is defined by this project. The
// kernel lets mmap wait while a process that has the file punches a hole, which may take seconds.
// After mapTime the mapping goes on in the background, and accesses wait for it or return its
// error.
const mapTime = 20 * time.Millisecond

// area is a file of the peer. A goroutine of its own opens and closes it, and maps and unmaps it
// where the file is not kept open. An open file is mapped at the first access through the
// mapping: a file that is only accessed by touchAside is never mapped.
type area struct {
	ready    chan struct{} // closed when file, b or err is set
	size     uint64
	writable bool
	file     int // the file, opened by us, for touchAside; -1: only b
	err      error
	users    int  // accesses in flight; guarded by the space's lock, as gone is
	gone     bool // unmap it when the last user leaves

	mapping sync.Mutex
	mapped  atomic.Bool // b is set; stored under mapping, or before ready is closed
	b       []byte
}

func newArea(size uint64, writable bool) *area {
	return &area{ready: make(chan struct{}), size: size, writable: writable, file: -1}
}

// wait waits up to most for the area. It returns the error of opening or mapping it, and nil if
// neither has finished.
func (a *area) wait(most time.Duration) error {
	select {
	case <-a.ready:
		return a.err
	default:
	}
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-a.ready:
		return a.err
	case <-late.C:
		return nil
	}
}

// has waits for the area and returns nil if it has n bytes at off.
func (a *area) has(off uint64, n int) error {
	<-a.ready
	if a.err != nil {
		return fmt.Errorf("%w: %w", ErrLost, a.err)
	}
	if off > a.size || uint64(n) > a.size-off { // a foreign slice shorter than its range
		return ErrLost
	}
	return nil
}

// at waits for the area and returns n of its mapped bytes at off.
func (a *area) at(off uint64, n int) ([]byte, error) {
	if err := a.has(off, n); err != nil {
		return nil, err
	}
	if !a.mapped.Load() {
		if err := a.mapNow(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
	return a.b[off:][:n], nil
}

// mapNow maps the open file.
func (a *area) mapNow() error {
	a.mapping.Lock()
	defer a.mapping.Unlock()
	if a.mapped.Load() {
		return nil
	}
	var err error
	if a.b, err = mapFile(a.file, a.size, a.writable); err == nil {
		a.mapped.Store(true)
	}
	return err
}

// retire unmaps an area that no mapping refers to, after its last access has ended. It does so in
// a goroutine, because munmap waits as mmap does. A nil area is ignored. The caller holds the
// space's lock.
func (a *area) retire() {
	if a == nil {
		return
	}
	if a.gone = true; a.users == 0 {
		go a.unmap()
	}
}

// unmap closes the descriptor first, so that it is not held for as long as munmap may take.
func (a *area) unmap() {
	if <-a.ready; a.file >= 0 {
		_ = unix.Close(a.file) // tmpfs reports no error on close
	}
	if a.b != nil {
		_ = unix.Munmap(a.b) // cannot fail: exactly the slice that was mapped
	}
}

// mapFile maps a file from its beginning.
func mapFile(fd int, size uint64, writable bool) ([]byte, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP) // keeps the driver's memory out of core dumps; cannot fail
	return b, nil
}

// flights holds the accesses in flight, with the DMA addresses that they touch.
type flights struct {
	list   []flight
	landed *sync.Cond
	waits  int
}

type flight struct {
	area       *area // nil: a free entry
	addr, last uint64
}

// enter records an access and returns its index.
func (f *flights) enter(a *area, addr, last uint64) int {
	a.users++
	for i := range f.list {
		if f.list[i].area == nil {
			f.list[i] = flight{a, addr, last}
			return i
		}
	}
	f.list = append(f.list, flight{a, addr, last})
	return len(f.list) - 1
}

// leave removes an access that has ended.
func (f *flights) leave(i int) {
	a := f.list[i].area
	f.list[i].area = nil
	if a.users--; a.users == 0 && a.gone {
		go a.unmap()
	}
	if f.waits > 0 {
		f.landed.Broadcast()
	}
}

// await waits until no access that is in flight now touches a range. The caller holds the lock.
func (f *flights) await(addr, last uint64) {
	f.waits++
	defer func() { f.waits-- }()
	for f.over(addr, last) {
		f.landed.Wait()
	}
}

func (f *flights) over(addr, last uint64) bool {
	for i := range f.list {
		if x := &f.list[i]; x.area != nil && x.addr <= last && addr <= x.last {
			return true
		}
	}
	return false
}
