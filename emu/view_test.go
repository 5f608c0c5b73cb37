package emu_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
	"github.com/exanet/pfd/space/view"
	"golang.org/x/sys/unix"
)

// counted counts the calls that reach the process itself.
type counted struct {
	*proc.Process
	walks, moves atomic.Int64
}

func (c *counted) Walk(va device.VA, pages int, write bool) (proc.Walk, error) {
	c.walks.Add(1)
	return c.Process.Walk(va, pages, write)
}

func (c *counted) WriteV(src [][]byte, va device.VA) (int, error) {
	c.moves.Add(1)
	return c.Process.WriteV(src, va)
}

func (c *counted) ReadV(dst [][]byte, va device.VA) (int, error) {
	c.moves.Add(1)
	return c.Process.ReadV(dst, va)
}

// TestSharedMemory: bytes move into memory that the target shares without a call to its process once the
// pages are entered in the view. Absent pages fault, are brought in and entered; pages that are punched
// out fault again; and memory that is no longer shared is accessed by the process again.
// Both by the process's page table and by the userfaultfd that came with the memory.
func TestSharedMemory(t *testing.T) {
	t.Run("table", func(t *testing.T) { sharedMemory(t, false) })
	t.Run("userfaultfd", func(t *testing.T) { sharedMemory(t, true) })
}

func sharedMemory(t *testing.T, filled bool) {
	v, err := view.New()
	if err != nil {
		t.Skipf("this kernel gives no view: Linux 5.14 does: %v", err)
	}
	const pages = 64
	r := newRig(t, fault.PIO)
	t.Cleanup(func() {
		r.on(1, func() { r.engine.Detach(1, r.sides[1].domain.Slot) })
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, pages*device.PageSize); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	dst, err := unix.Mmap(fd, 0, pages*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(dst) }()
	if err := v.Share(va(dst), uint64(len(dst)), fd, 0, true); err != nil {
		t.Fatal(err)
	}
	if filled {
		if !uffd.Protects() {
			t.Skip("this kernel gives no userfaultfd with write-protect faults: Linux 5.19 does, on arm64 6.10")
		}
		h, err := uffd.NewHoles()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if err := h.Add(va(dst), uint64(len(dst))); err != nil {
			t.Fatal(err)
		}
		if err := v.Watch(va(dst), h.FD(), true, func(unmap func()) { unmap() }); err != nil {
			t.Fatal(err)
		}
	}
	memory := &counted{Process: r.process}
	r.on(1, func() {
		s := r.sides[1]
		r.engine.Detach(1, s.domain.Slot)
		r.drivers[1].Remove(s.domain.Slot)
		if err := r.engine.Attach(1, s.domain.Slot, &emu.Attachment{Pages: s.pages, Wake: s.mem.WakeFD(), Space: space.NewShared(v, space.NewDirect(memory, gup.NewShared(r.process, v)), false)}); err != nil {
			t.Error(err)
		}
		err := r.drivers[1].Add(fault.Target{Slot: s.domain.Slot, PDID: s.domain.PDID, Policy: fault.PIO})
		if err != nil {
			t.Error(err)
		}
	})
	accesses := func() (a emu.Accesses) {
		r.on(1, func() { a = r.engine.Accesses(1) })
		return a
	}
	faults := func() (n uint64) {
		r.on(1, func() { n = r.drivers[1].Stats().Faults })
		return n
	}
	round := byte(0)
	write := func(what string, first, n int, walks, moves int64, faulting bool) {
		t.Helper()
		round++
		w, m, f := memory.walks.Load(), memory.moves.Load(), faults()
		src := bytes.Repeat([]byte{round, 2, 3, 5}, n*device.PageSize/4)
		to := dst[first*device.PageSize:][:len(src)]
		if done := r.write(0, device.Descriptor{Src: va(src), Dst: va(to), Size: uint32(len(src)), DstNode: 1}); done != device.DoneCompleted {
			t.Fatalf("%s: done %d", what, done)
		}
		w, m, f = memory.walks.Load()-w, memory.moves.Load()-m, faults()-f
		if !bytes.Equal(src, to) {
			t.Errorf("%s: other bytes", what)
		}
		if walks >= 0 && w != walks || moves >= 0 && m != moves || (f > 0) != faulting {
			t.Errorf("%s: %d walks, %d moves by the process, %d faults", what, w, m, f)
		}
	}
	write("absent", 0, 1, 1, 0, true) // the page-in has entered the page
	before := accesses()
	write("entered", 0, 1, 0, 0, false)
	if a := accesses(); a.Shared != before.Shared+2 || a.SharedMissed != before.SharedMissed {
		t.Errorf("counted %+v, before %+v: want a walk and a move more of shared memory", a, before)
	}
	for i := 16; i < 32; i++ {
		dst[i*device.PageSize] = 1
	}
	// The first page of one window of 64 KiB.
	first := 16 + int(-(uint64(va(dst))>>device.PageShift)%16)
	dst[(first+1)*device.PageSize] = 1
	before = accesses()
	write("touched", first, 1, 1, 0, false)
	if a := accesses(); a.Shared != before.Shared+1 || a.SharedMissed != before.SharedMissed+1 {
		t.Errorf("counted %+v, before %+v: want a missed walk and a move more of shared memory", a, before)
	}
	write("its neighbour", first+1, 1, 0, 0, false)
	write("many that are absent", 40, 16, -1, -1, true)
	write("and are entered", 40, 16, 0, 0, false)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 2*device.PageSize); err != nil {
		t.Fatal(err)
	}
	write("punched out", 0, 1, 1, 0, true)
	if !v.Unshare(va(dst), uint64(len(dst))) {
		t.Fatal("not unshared")
	}
	write("shared no more", 0, 1, 1, 1, false)
}
