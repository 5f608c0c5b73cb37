package bench

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
	"github.com/exanet/pfd/space/view"
)

// bare measures the system calls by which pfd accesses memory, without pfd and without a
// device, on the same memory of the same processes.
type bare struct {
	src, dst *proc.Process
	buf      []byte
}

func (b *bare) close() {
	for _, p := range []*proc.Process{b.src, b.dst} {
		if p != nil {
			_ = p.Close() // releases descriptors only
		}
	}
	b.src, b.dst = nil, nil
}

// measure returns the case that makes one call on each part of the memory. Each round fills the
// memory again as q says.
func (b *bare) measure(r *run, p *workload.Perf, q workload.PerfRun, c *Cell, call func(src, dst device.VA, size uint64) (time.Duration, error)) *turn {
	count := r.count(q.Size)
	if q.Parts > 0 {
		count = q.Count
	} else {
		q.Parts = rowOf(q.Size)
	}
	return &turn{count: count, do: func(add func(*Cell, ...float64)) error {
		for _, q.Memory = range r.kinds(p) {
			src, dst, err := p.Prepare(q)
			if err != nil {
				return err
			}
			if b.src == nil {
				var errs [2]error
				b.src, errs[0] = proc.OpenPID(src.PID)
				b.dst, errs[1] = proc.OpenPID(dst.PID)
				if err := errors.Join(errs[:]...); err != nil {
					return err
				}
			}
			if err := laps(add, c.of(q.Memory), q.Parts, q.Parts/4, func(i int) (time.Duration, error) {
				at := device.VA(uint64(i) * src.Size)
				return call(src.VA+at, dst.VA+at, q.Size)
			}); err != nil {
				return err
			}
		}
		return nil
	}}
}

// pageIn measures paging in absent memory by process_vm_writev.
func (b *bare) pageIn(_, dst device.VA, size uint64) (time.Duration, error) {
	return pageIn(gup.New(b.dst), b.dst, dst, size)
}

// pageIn measures paging in absent memory of p, with the largest number of pages per call that
// pfd uses. As in pfd, a walk precedes each call; it is not measured.
func pageIn(pager *gup.Pager, p *proc.Process, dst device.VA, size uint64) (sum time.Duration, err error) {
	for at := uint64(0); at < size; at += gup.MaxPages * device.PageSize {
		va := dst + device.VA(at)
		pages := int(min(size-at, gup.MaxPages*device.PageSize) / device.PageSize)
		if _, err := p.Walk(va, pages, true); err != nil {
			return 0, err
		}
		start := time.Now()
		r := pager.PageIn(va, pages, true)
		sum += time.Since(start)
		if want := ^uint64(0) >> (64 - uint(pages)); r.Err != nil || r.Resident != want {
			return 0, fmt.Errorf("page-in of %d pages at %v: %#x are resident, want %#x: %w", pages, va, r.Resident, want, r.Err)
		}
	}
	return sum, nil
}

// copied measures copying by the two system calls that pfd uses, with their largest size.
func (b *bare) copied(src, dst device.VA, size uint64) (time.Duration, error) {
	if b.buf == nil {
		b.buf = make([]byte, proc.MaxBytes)
	}
	start := time.Now()
	for at := uint64(0); at < size; at += proc.MaxBytes {
		part := [][]byte{b.buf[:min(size-at, proc.MaxBytes)]}
		if _, err := b.src.ReadV(part, src+device.VA(at)); err != nil {
			return 0, err
		}
		if _, err := b.dst.WriteV(part, dst+device.VA(at)); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// transfer makes the four calls of a transfer between present pages: pfd walks the pages of
// both ends before it copies.
func (b *bare) transfer(src, dst device.VA, size uint64) error {
	pages := int(size / device.PageSize)
	if _, err := b.src.Walk(src, pages, false); err != nil {
		return err
	}
	if _, err := b.dst.Walk(dst, pages, true); err != nil {
		return err
	}
	_, err := b.copied(src, dst, size)
	return err
}

// faulting measures a transfer to an absent page in processor time of the calling thread.
func (b *bare) faulting(src, dst device.VA, size uint64) (time.Duration, error) {
	before, err := clockTime(unix.CLOCK_THREAD_CPUTIME_ID)
	if err != nil {
		return 0, err
	}
	_, err = b.dst.Walk(dst, 1, true)
	if err == nil {
		err = gup.New(b.dst).PageIn(dst, 1, true).Err
	}
	if err == nil {
		err = b.transfer(src, dst, size)
	}
	after, e := clockTime(unix.CLOCK_THREAD_CPUTIME_ID)
	return after - before, errors.Join(err, e)
}

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
