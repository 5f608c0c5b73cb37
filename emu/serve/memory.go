package serve

import (
	"errors"
	"fmt"
	"sync"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/vfio/user"
)

// maxPages is the maximum for one call of the engine.
const maxPages = 64

// memory is the address space that a context bank's tables define in the driver's DMA memory. Every
// access walks the tables, like a TLB that always misses. So access ends with the table entry, the
// mapping, bus mastering or the driver. It is safe for concurrent use.
type memory struct {
	space.Prompt
	dma    *user.DMA
	read   func(addr uint64, p []byte) error // dma.Read, bound once
	tables smmu.Tables
	// readAt and writeAt move bytes by system calls. Processes punch holes into the memory that they
	// share. A plain load or store that sleeps on such a page would block a garbage collection, and
	// with it all goroutines.
	readAt, writeAt func(addr uint64, p []byte) error
}

func newMemory(dma *user.DMA, t smmu.Tables) *memory {
	return &memory{dma: dma, read: dma.Read, tables: t, readAt: dma.ReadAside, writeAt: dma.WriteAside}
}

// Start implements space.Space. Walks read the driver's own tables, into which no process punches
// holes. Moves are Mapped, too, although they make system calls: both are short unless the driver
// makes them sleep, and the engine performs a Mapped step under a lease.
func (m *memory) Start(_ *space.Op, _ int64, mapped bool) space.Step {
	if mapped {
		return space.Mapped
	}
	return space.Apart
}

// Run implements space.Space.
func (m *memory) Run(op *space.Op) {
	if op.PagesIn() {
		op.Fail(proc.ErrGone) // the driver in the other process pages in
		return
	}
	space.Access(m, op)
}

// errWalk means that a page no longer has a translation.
var errWalk = errors.New("no translation")

// scratch is the memory of a walk in addition to its stack.
type scratch struct {
	entries smmu.Scratch
	pages   [maxPages]smmu.Page
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Walk implements space.Memory.
func (m *memory) Walk(va device.VA, pages int, write bool) (proc.Walk, error) {
	if pages < 1 || pages > maxPages {
		return proc.Walk{}, fmt.Errorf("walk of %d pages: give 1 to %d", pages, maxPages)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	m.tables.Walk(va, write, s.pages[:pages], &s.entries, m.read)
	var w proc.Walk
	for i := range pages {
		switch s.pages[i].Fault {
		case smmu.NoFault:
		case smmu.PermissionFault:
			w.Denied |= 1 << i
		case smmu.AccessFlag:
			w.Unused |= 1 << i
		case smmu.TableFault:
			w.External |= 1 << i
		default:
			w.Absent |= 1 << i
		}
	}
	return w, nil
}

// ReadV implements space.Memory.
func (m *memory) ReadV(dst [][]byte, va device.VA) (int, error) {
	return m.move(dst, va, false)
}

// WriteV implements space.Memory.
func (m *memory) WriteV(src [][]byte, va device.VA) (int, error) {
	return m.move(src, va, true)
}

// move copies between bufs and the memory from va on, at most 256 KiB, and returns the number of bytes
// copied. Contiguous pages are moved together.
func (m *memory) move(bufs [][]byte, va device.VA, write bool) (int, error) {
	total := 0
	for _, b := range bufs {
		total += len(b)
	}
	if total == 0 {
		return 0, nil
	}
	pages := int((va.Offset() + uint64(total) + device.PageSize - 1) >> device.PageShift)
	if pages > maxPages {
		return 0, fmt.Errorf("move of %d pages: give at most %d", pages, maxPages)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	m.tables.Walk(va, write, s.pages[:pages], &s.entries, m.read)
	moved, page, at := 0, 0, va.Offset() // at: in the run that begins at page
	buf, off := 0, 0
	for page < pages && moved < total {
		if s.pages[page].Fault != smmu.NoFault {
			return moved, fmt.Errorf("move at %v: %w", va+device.VA(moved), errWalk)
		}
		run := 1
		for page+run < pages && s.pages[page+run].Fault == smmu.NoFault &&
			s.pages[page+run].Address == s.pages[page].Address+uint64(run)<<device.PageShift {
			run++
		}
		for at < uint64(run)<<device.PageShift && moved < total {
			for off == len(bufs[buf]) {
				buf, off = buf+1, 0
			}
			n := min(uint64(len(bufs[buf])-off), uint64(run)<<device.PageShift-at)
			p, addr := bufs[buf][off:off+int(n)], s.pages[page].Address+at
			var err error
			if write {
				err = m.writeAt(addr, p)
			} else {
				err = m.readAt(addr, p)
			}
			if err != nil {
				return moved, fmt.Errorf("move at %v: %w", va+device.VA(moved), err)
			}
			off += int(n)
			moved += int(n)
			at += n
		}
		page, at = page+run, 0
	}
	return moved, nil
}
