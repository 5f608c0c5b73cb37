package shadow

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
)

// files is a device with the file limits of vfio/user, but for fewer files.
type files struct {
	*unit
	mu   sync.Mutex
	at   map[uint64]file1 // by address
	most int
}

// file1 is the mapped part of a file, up to end.
type file1 struct{ ino, end uint64 }

func (f *files) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ends, sum := map[uint64]uint64{st.Ino: offset + size}, 0
	for _, m := range f.at {
		ends[m.ino] = max(ends[m.ino], m.end)
	}
	for _, end := range ends {
		sum += int((end + fileStep - 1) / fileStep)
	}
	if sum > f.most {
		return unix.ENOSPC
	}
	f.at[addr] = file1{st.Ino, offset + size}
	return f.unit.MapDMA(addr, size, fd, offset, rights)
}

func (f *files) UnmapDMA(addr, size uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for a := range f.at {
		if a >= addr && a < addr+size {
			delete(f.at, a)
		}
	}
	return f.unit.UnmapDMA(addr, size)
}

// newFiles returns a Memory whose peer has room for 64 files besides that of the tables.
func newFiles(t *testing.T) *unit {
	u := newUnit(t, 0, 48)
	u.m.cfg.DMA = &files{unit: u, at: map[uint64]file1{}, most: 65}
	return u
}

// TestFilesOfOne: slot 1 has most of the device's files mapped, or few long ones. Slot 2 has more
// bytes. When slot 2 pages in another file, none of its own is evicted.
func TestFilesOfOne(t *testing.T) {
	for _, long := range []bool{false, true} {
		u := newFiles(t)
		pageIn := func(slot int, va device.VA) {
			t.Helper()
			if r := u.m.PageIn(slot, va, 1, true); r.Err != nil {
				t.Error(r.Err)
			}
		}
		const va = 0x40000000
		for i := range 62 {
			at := device.VA(va + i*0x100000)
			switch {
			case !long:
				shareMemory(t, u, 1, at, 1, true)
			case i == 0:
				fd, _ := file(t, 1, unix.F_SEAL_SHRINK)
				if err := errors.Join(unix.Ftruncate(fd, MaxShared), u.m.Share(1, at, page, fd, MaxShared-page, true)); err != nil {
					t.Fatal(err)
				}
			case i <= 62-MaxShared/fileStep: // the others have less
				shareMemory(t, u, 3, at, 1, true)
				pageIn(3, at)
				continue
			default:
				continue
			}
			pageIn(1, at)
		}
		for i := range 2 {
			shareMemory(t, u, 2, device.VA(va+i*0x100000), 128, true)
			for p := range 128 {
				pageIn(2, device.VA(va+i*0x100000+p*page))
			}
		}
		u.m.mu.Lock()
		before := [4]uint64{}
		for i := range before {
			before[i] = u.m.spaces[i].taken
		}
		u.m.mu.Unlock()
		shareMemory(t, u, 2, 0x80000000, 1, true)
		pageIn(2, 0x80000000)
		for i, n := range map[int]uint64{1: before[1] - page, 2: before[2] + page, 3: before[3]} {
			if got := u.m.spaces[i].taken; got != n {
				t.Errorf("long %v: slot %d has %d bytes, want %d", long, i, got, n)
			}
		}
	}
}

// TestFilesAtOnce: slots that together have twice as many files as there is room for page them in
// at once, and every page-in succeeds.
func TestFilesAtOnce(t *testing.T) {
	u := newFiles(t)
	fd, _ := file(t, 4, unix.F_SEAL_SHRINK) // of all slots
	var wg sync.WaitGroup
	for slot := range 4 {
		const va = 0x40000000
		for i := range 32 {
			shareMemory(t, u, slot, device.VA(va+i*0x100000), 2, true)
		}
		if err := u.m.Share(slot, va+32*0x100000, 4*page, fd, 0, true); err != nil {
			t.Fatal(err)
		}
		for k := range 2 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(slot), uint64(k)))
				for range 500 {
					at := device.VA(va + rng.IntN(33)*0x100000 + rng.IntN(2)*page)
					if r := u.m.PageIn(slot, at, 1, true); errors.Is(r.Err, gup.ErrUnmappable) {
						t.Error(r.Err)
					}
				}
			})
		}
	}
	wg.Wait()
}
