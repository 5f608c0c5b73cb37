package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/proc"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/uffd"
	"github.com/exanet/pfd/view"
	"github.com/exanet/pfd/workload"
)

// filler measures filling missing pages, without pfd and without a device. Its memory is
// shared with this process itself, as processes share theirs with pfd.
type filler struct {
	b     []byte
	self  *proc.Process
	view  *view.View
	holes *uffd.Holes
}

func newFiller(size uint64) (f *filler, err error) {
	f = &filler{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	fd, err := rdma.MakeMemory(size, device.PageSize)
	if err != nil {
		return f, err
	}
	defer unix.Close(fd) // the mappings keep the file
	if f.b, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return f, fmt.Errorf("memory to be filled: %w", err)
	}
	if f.holes, err = uffd.NewHoles(); err != nil {
		return f, err
	}
	if err = f.holes.Add(rdma.VAOf(f.b), size); err != nil {
		return f, err
	}
	if f.view, err = view.New(); err != nil {
		return f, err
	}
	if err = errors.Join(f.view.Share(rdma.VAOf(f.b), size, fd, 0, true), f.view.Watch(rdma.VAOf(f.b), f.holes.FD(), true, func(unmap func()) { unmap() })); err != nil {
		return f, err
	}
	f.self, err = proc.OpenPID(os.Getpid())
	return f, err
}

func (f *filler) close() {
	if f.self != nil {
		_ = f.self.Close() // this and the following calls release resources only
	}
	if f.view != nil {
		_ = f.view.Close()
	}
	if f.holes != nil {
		_ = f.holes.Close()
	}
	if f.b != nil {
		_ = unix.Munmap(f.b)
	}
}

// turn returns the case that makes the memory absent and fills its parts one after the other.
func (f *filler) turn(count, parts int, c *Cell) *turn {
	return &turn{count: count, do: func(add func(*Cell, ...float64)) error {
		if err := unix.Madvise(f.b, unix.MADV_REMOVE); err != nil {
			return fmt.Errorf("memory to be filled: %w", err)
		}
		pager, size := gup.NewShared(f.self, f.view), len(f.b)/parts
		return laps(add, c.of(workload.Shared), parts, parts/4, func(i int) (time.Duration, error) {
			return pageIn(pager, f.self, rdma.VAOf(f.b[i*size:]), uint64(size))
		})
	}}
}
