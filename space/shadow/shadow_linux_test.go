package shadow

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/space/shadow/shadowtest"
)

// unit is a device as strict as a real one may be. Its TLB keeps every translation that it has
// used until an invalidation. Its IOMMU must never fault: every access and every walk must find
// its address mapped. It is safe for concurrent use; step is called where other goroutines may
// run in between.
type unit struct {
	t    testing.TB
	m    *Memory
	step func(what string) // nil: nothing

	mu     sync.Mutex
	quiet  *sync.Cond
	maps   map[uint64]mapped
	tlb    map[entry]uint64
	walks  map[uint64]region // the tables that the TLB has cached, by their address
	flight map[*flight]bool
	gone   error                         // the error of every call once the device is gone
	refuse func(addr, size uint64) error // the result of a map, checked first
	pins   *shadowtest.Pins              // nil: mapping pins nothing

	unmaps, invalidations int
}

type mapped struct {
	size   uint64
	b      []byte // the same bytes of the file
	rights uint32
}

type entry struct {
	slot int
	page uint64
}

// region is the range of a slot's addresses that a table translates.
type region struct {
	slot   int
	va     device.VA // its first address
	across uint64    // bytes
}

// flight is an access that has its translation but has not reached memory.
type flight struct{ slot int }

func (u *unit) Ranges() ([]Range, error) { return []Range{{0, 1<<39 - 1}}, nil }

func (u *unit) Kind() Kind {
	if u.pins != nil {
		return Pinned
	}
	return Files
}

func (u *unit) pause(what string) {
	if u.step != nil {
		u.step(what)
	}
}

func (u *unit) MapDMA(addr, size uint64, fd int, offset uint64, rights uint32) error {
	u.pause("map")
	defer u.pause("mapped")
	if u.refuse != nil {
		if err := u.refuse(addr, size); err != nil {
			return err
		}
	}
	if u.pins != nil {
		if err := u.pins.Map(addr, size, fd, offset); err != nil {
			return err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone != nil {
		return u.gone
	}
	for a, m := range u.maps {
		if addr < a+m.size && a < addr+size {
			u.t.Errorf("%#x+%#x is mapped over %#x+%#x", addr, size, a, m.size)
		}
	}
	prot := unix.PROT_READ
	if rights&dmaWrite != 0 {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, int64(offset), int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	u.maps[addr] = mapped{size, b, rights}
	return nil
}

func (u *unit) UnmapDMA(addr, size uint64) error {
	u.pause("unmap")
	defer u.pause("unmapped")
	if u.pins != nil {
		if err := u.pins.Unmap(addr, size); err != nil {
			return err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone != nil {
		return u.gone
	}
	for e, at := range u.tlb {
		if addr <= at && at < addr+size {
			u.t.Errorf("%#x is unmapped while the TLB has it for page %#x of slot %d", at, e.page, e.slot)
		}
	}
	var err error
	n := 0
	for a, m := range u.maps {
		switch {
		case addr <= a && a+m.size <= addr+size:
			n++
			delete(u.maps, a)
			err = errors.Join(err, unix.Munmap(m.b))
		case addr < a+m.size && a < addr+size:
			u.t.Errorf("%#x+%#x is unmapped and cuts %#x+%#x", addr, size, a, m.size)
		}
	}
	if n == 0 {
		u.t.Errorf("%#x+%#x is unmapped but nothing is mapped there", addr, size)
	}
	u.unmaps++
	return err
}

func (u *unit) invalidate(slot int, va device.VA, pages int) error {
	u.pause("invalidate")
	u.mu.Lock()
	defer u.mu.Unlock()
	u.invalidations++
	first := uint64(va) >> device.PageShift
	for e := range u.tlb {
		if e.slot == slot && e.page >= first && e.page-first < uint64(pages) {
			delete(u.tlb, e)
		}
	}
	last := va + device.VA(min(uint64(pages), 1<<36)<<device.PageShift) - 1
	maps.DeleteFunc(u.walks, func(_ uint64, r region) bool {
		return r.slot == slot && r.va <= last && va <= r.va+device.VA(r.across-1)
	})
	before := maps.Clone(u.flight)
	for {
		maps.DeleteFunc(before, func(f *flight, _ bool) bool { return f.slot != slot || !u.flight[f] })
		if len(before) == 0 {
			return u.gone
		}
		u.quiet.Wait()
	}
}

// bytes returns mapped memory at a DMA address.
func (u *unit) bytes(addr uint64, n int) ([]byte, error) {
	for a, m := range u.maps {
		if a <= addr && addr+uint64(n) <= a+m.size {
			return m.b[addr-a:][:n], nil
		}
	}
	return nil, errors.New("not mapped")
}

// access translates as the device does, and returns the byte there.
func (u *unit) access(slot int, va device.VA, write bool) (got *byte, fault smmu.Fault) {
	u.try(slot, va, write, func(b *byte) { got = b }, func(f smmu.Fault) { fault = f })
	return got, fault
}

// try translates and calls do with the byte there, or calls fault.
func (u *unit) try(slot int, va device.VA, write bool, do func(*byte), fault func(smmu.Fault)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out [1]smmu.Page
	t := smmu.Tables{TTBR0: u.m.Root(slot), TCR: uint32(64 - u.m.cfg.VABits)}
	e := entry{slot, uint64(va) >> device.PageShift}
	addr, ok := u.tlb[e]
	if !ok {
		level := u.m.tables.top
		t.Walk(va, write, out[:], new(smmu.Scratch), func(addr uint64, p []byte) error {
			across := uint64(page) << (levelBits * (tableLevels - level))
			r := region{slot, va &^ device.VA(across-1), across}
			if was, ok := u.walks[addr&^(page-1)]; ok && was != r {
				u.t.Errorf("table %#x of %+v is used for %+v before the TLB was invalidated", addr&^(page-1), was, r)
			}
			for at, was := range u.walks {
				if was == r && at != addr&^(page-1) {
					u.t.Errorf("table %#x replaced %#x of %+v before the TLB was invalidated", addr&^(page-1), at, r)
				}
			}
			u.walks[addr&^(page-1)] = r
			level++
			b, err := u.bytes(addr, len(p))
			copy(p, b)
			if err != nil {
				u.t.Errorf("a walk of slot %d reads %#x, which is not mapped", slot, addr)
			}
			return err
		})
		if out[0].Fault != smmu.NoFault {
			fault(out[0].Fault)
			return
		}
		addr = out[0].Address
		u.tlb[e] = addr
	}
	f := &flight{slot}
	u.flight[f] = true
	u.mu.Unlock()
	u.pause("access")
	u.mu.Lock()
	delete(u.flight, f)
	u.quiet.Broadcast()
	b, err := u.bytes(addr+va.Offset(), 1)
	if err != nil {
		u.t.Errorf("page %#x of slot %d is at %#x, which is not mapped", e.page, slot, addr)
		return
	}
	do(&b[0])
}

func newUnit(t testing.TB, window uint64, vaBits int, with ...func(*unit)) *unit {
	t.Helper()
	u := &unit{t: t, maps: map[uint64]mapped{}, tlb: map[entry]uint64{}, walks: map[uint64]region{}, flight: map[*flight]bool{}}
	u.quiet = sync.NewCond(&u.mu)
	for _, f := range with {
		f(u)
	}
	var err error
	u.m, err = New(Config{DMA: u, Invalidate: u.invalidate, VABits: vaBits, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		u.step = nil
		for slot := range device.Slots {
			u.m.Drop(slot)
		}
		u.m.sweeps.Wait()
		u.m.Idle(0)
		if u.gone == nil && len(u.maps) != 1 {
			t.Errorf("%d mappings are left, want the roots' alone", len(u.maps))
		}
		if s := u.m.Stats(); u.gone == nil && (s.Mapped != 0 || s.Tables != chunkSize || s.Moving != 0 || s.Shared != 0 || u.m.taken != 0 || u.m.promised != 0) {
			t.Errorf("at the end: %+v, %d bytes taken, %d tables promised", s, u.m.taken, u.m.promised)
		}
		for _, m := range u.maps {
			_ = unix.Munmap(m.b)
		}
		if err := u.m.Close(); err != nil {
			t.Error(err)
		}
	})
	return u
}

// file makes a process's memory: a memfd and our mapping of it.
func file(t testing.TB, pages int, seals int) (fd int, b []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, int64(pages)*device.PageSize)
	}
	if err == nil && seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil {
		b, err = unix.Mmap(fd, 0, pages*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fd), unix.Munmap(b) })
	return fd, b
}

const page = device.PageSize

func shareMemory(t testing.TB, u *unit, slot int, va device.VA, pages int, write bool) []byte {
	t.Helper()
	fd, b := file(t, pages, unix.F_SEAL_SHRINK)
	if err := u.m.Share(slot, va, uint64(len(b)), fd, 0, write); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSharedIsNotMapped shares a file that is partly resident. Its resident pages are entered
// without mapping the file in pfd. Only a page-in of another page maps it, which is no work for
// the device's owner.
func TestSharedIsNotMapped(t *testing.T) {
	u := newUnit(t, 0, 48)
	const va = 0x10000000
	fd, b := file(t, 32, unix.F_SEAL_SHRINK)
	for _, p := range []int{2, 3, 16} {
		b[p*page] = 1
	}
	for range 3 {
		if err := u.m.Share(0, va, uint64(len(b)), fd, 0, true); err != nil {
			t.Fatal(err)
		}
		s := u.m.spaces[0].shares[0]
		for p := range 32 {
			_, f := u.access(0, device.VA(va+p*page), false)
			if there := f == 0; there != (p == 2 || p == 3 || p == 16) {
				t.Errorf("page %d: fault %v", p, f)
			}
		}
		if s.mapped.Load() || u.m.Prompt(0, va, 1) {
			t.Error("a file of which nothing was paged in is mapped")
		}
		if err := u.m.Unshare(0, va, uint64(len(b))); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := unix.Seek(fd, 0, unix.SEEK_CUR); err != nil || at != 0 {
		t.Errorf("the process's file stands at %d, %v", at, err)
	}
	if err := u.m.Share(0, va, uint64(len(b)), fd, 0, true); err != nil {
		t.Fatal(err)
	}
	if r := u.m.PageIn(0, va, 1, true); r.Err != nil || r.Resident != 1 {
		t.Fatalf("%+v", r)
	}
	if !u.m.spaces[0].shares[0].mapped.Load() || !u.m.Prompt(0, va, 1) {
		t.Error("a file of which a page was brought in is not mapped")
	}
	// If the kernel does not report residency for a file, the mapping provides it.
	s := u.m.spaces[0].shares[0]
	by, kept := s.resident(Files, uint64(len(b))), s.fd
	s.fd = -1
	if other := s.resident(Files, uint64(len(b))); !slices.Equal(by, other) || len(by) != 3 {
		t.Errorf("in memory: %v, by the mapping %v", by, other)
	}
	s.fd = kept
	// A file that the process seals before that can no longer be mapped: a permanent error, and
	// not lack of memory.
	const sealed = va + 1<<20
	fd, _ = file(t, 1, unix.F_SEAL_SHRINK)
	if err := u.m.Share(0, sealed, page, fd, 0, true); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		t.Fatal(err)
	}
	if r := u.m.PageIn(0, sealed, 1, true); !errors.Is(r.Err, gup.ErrDenied) || r.Kind != gup.Permission {
		t.Errorf("sealed after it was shared: %+v", r)
	}
}

// TestPageIn pages in across the border of every level of the tables, and finds the process's own
// bytes there.
func TestPageIn(t *testing.T) {
	for _, bits := range []int{39, 40, 48} {
		u := newUnit(t, 0, bits)
		for i, border := range []device.VA{1 << 21, 1 << 30, 1<<39 - 8*page} {
			va := border - 8*page
			b := shareMemory(t, u, i, va, 16, true)
			if _, f := u.access(i, va, false); f != smmu.Translation {
				t.Errorf("%v before its page-in: fault %v", va, f)
			}
			for at := 0; at < 16; {
				r := u.m.PageIn(i, va+device.VA(at*page)+5, 16, true)
				if r.Err != nil || r.Resident == 0 || r.Resident&(r.Resident+1) != 0 {
					t.Fatalf("%d bits, %v: %+v", bits, va, r)
				}
				for ; r.Resident != 0; r.Resident >>= 1 {
					at++
				}
			}
			for p := range 16 {
				b[p*page+7] = byte(p + 1)
				got, f := u.access(i, va+device.VA(p*page+7), true)
				if f != smmu.NoFault || *got != byte(p+1) {
					t.Fatalf("%d bits, page %d at %v: fault %v", bits, p, va, f)
				}
			}
			// No other slot's tables have it.
			if _, f := u.access(i+3, va, false); f != smmu.Translation {
				t.Errorf("slot %d reaches slot %d's memory", i+3, i)
			}
		}
	}
}

// TestNeighbours has two adjacent shares, of which the first ends within a granule. Unmapping it
// takes nothing from the other.
func TestNeighbours(t *testing.T) {
	u := newUnit(t, 0, 48)
	const va, pages = 1 << 30, 3
	shareMemory(t, u, 0, va, pages, true)
	shareMemory(t, u, 0, va+pages*page, 1, true)
	for _, at := range []device.VA{va, va + pages*page} {
		if r := u.m.PageIn(0, at, 1, true); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if err := u.m.Unshare(0, va, pages*page); err != nil {
		t.Fatal(err)
	}
	if gone := u.m.Invalidations()[0]; gone != (tally.Invalidated{Calls: 1, Pages: 1}) {
		t.Errorf("invalidated: %+v", gone)
	}
	if _, f := u.access(0, va, true); f != smmu.Translation {
		t.Errorf("the unshared memory: fault %v", f)
	}
	if _, f := u.access(0, va+pages*page, true); f != smmu.NoFault {
		t.Errorf("its neighbour: fault %v", f)
	}
}

// TestEviction uses twice the size of the window: the mapped amount never exceeds the window, the
// least recently used place is evicted first, and every page can be brought in again.
func TestEviction(t *testing.T) {
	u := newUnit(t, MinWindow, 48)
	const pages = 2 * MinWindow / page
	const va = 0x7f0000000000
	b := shareMemory(t, u, 4, va, pages, true)
	for round := range 3 {
		for p := range pages {
			at := device.VA(va + p*page)
			if _, f := u.access(4, at, true); f != smmu.Translation {
				t.Fatalf("round %d: page %d, the least recently used, is still present", round, p)
			}
			if r := u.m.PageIn(4, at, 1, true); r.Err != nil || r.Resident != 1 {
				t.Fatalf("%+v", r)
			}
			b[p*page] = byte(p)
			if got, f := u.access(4, at, true); f != smmu.NoFault || *got != byte(p) {
				t.Fatalf("page %d: fault %v", p, f)
			}
			if s := u.m.Stats(); s.Mapped > s.Window || s.Window != MinWindow {
				t.Fatalf("%+v", s)
			}
		}
	}
	if s := u.m.Stats(); s.Evictions != 3*pages-MinWindow/page || u.unmaps != int(s.Evictions) || u.invalidations < u.unmaps {
		t.Errorf("%+v, %d unmapped, %d invalidations", s, u.unmaps, u.invalidations)
	}
	if gone := u.m.Invalidations(); gone[4] != (tally.Invalidated{Calls: 3*pages - MinWindow/page, Pages: 3*pages - MinWindow/page}) || gone[0].Pages != 0 {
		t.Errorf("invalidated: %+v", gone)
	}
	// One page-in brings in at most a quarter of the window.
	if r := u.m.PageIn(4, va, 64, true); r.Resident != 1<<(MinWindow/4/page)-1 {
		t.Errorf("page-in of 64 pages into a window of %d: %#x", MinWindow/page, r.Resident)
	}
	// Memory that a transfer has announced stays longer.
	u.m.Drop(4)
	u.m.sweeps.Wait()
	shareMemory(t, u, 4, va, pages, true)
	for p := range MinWindow / page {
		u.m.PageIn(4, device.VA(va+p*page), 1, true)
	}
	u.m.Used(4, va, page)
	u.m.PageIn(4, device.VA(va+MinWindow), 1, true)
	if _, f := u.access(4, va, false); f != smmu.NoFault {
		t.Error("the page that was used last is evicted")
	}
	if _, f := u.access(4, va+page, false); f != smmu.Translation {
		t.Error("the least recently used page is present")
	}
}

// TestPresent: pages that are resident when they are shared need no page-in.
func TestPresent(t *testing.T) {
	u := newUnit(t, 0, 48)
	fd, b := file(t, 8, unix.F_SEAL_SHRINK)
	b[2*page], b[3*page] = 1, 1
	const va = 0x1000000
	if err := u.m.Share(0, va, 8*page, fd, 0, true); err != nil {
		t.Fatal(err)
	}
	for p := range 8 {
		_, f := u.access(0, device.VA(va+p*page), true)
		if want := p == 2 || p == 3; (f == smmu.NoFault) != want {
			t.Errorf("page %d: fault %v", p, f)
		}
	}
}

func TestRights(t *testing.T) {
	u := newUnit(t, 0, 48)
	const va = 0x1000000
	shareMemory(t, u, 0, va, 4, false)
	if r := u.m.PageIn(0, va, 1, true); !errors.Is(r.Err, gup.ErrDenied) || r.Resident != 0 {
		t.Errorf("page-in for writing of read-only memory: %+v", r)
	}
	if r := u.m.PageIn(0, va, 4, false); r.Err != nil || r.Resident != 0xf {
		t.Errorf("page-in for reading: %+v", r)
	}
	if _, f := u.access(0, va, true); f != smmu.PermissionFault {
		t.Errorf("a write to it: fault %v", f)
	}
	for _, at := range []device.VA{0, va - page, va + 4*page, 1 << 47, 1<<64 - page} {
		if r := u.m.PageIn(0, at, 64, false); !errors.Is(r.Err, gup.ErrNotShared) || r.Resident != 0 {
			t.Errorf("page-in at %v: %+v", at, r)
		}
	}
	for _, n := range []int{-1, 0, 65} {
		if r := u.m.PageIn(0, va, n, false); r.Err == nil {
			t.Errorf("page-in of %d pages: %+v", n, r)
		}
	}
	if r := u.m.PageIn(16, va, 1, false); r.Err == nil {
		t.Errorf("page-in in slot 16: %+v", r)
	}
}

func TestShareRefuses(t *testing.T) {
	u := newUnit(t, 0, 39)
	before := openFiles(t)
	good, _ := file(t, 8, unix.F_SEAL_SHRINK)
	open, _ := file(t, 8, 0)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	const va = 0x10000000
	if err := u.m.Share(2, va, 4*page, good, 0, true); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name         string
		slot         int
		va           device.VA
		size, offset uint64
		fd           int
	}{
		{"slot 16", 16, va, page, 0, good},
		{"slot -1", -1, va, page, 0, good},
		{"no bytes", 1, va, 0, 0, good},
		{"half a page", 1, va, page / 2, 0, good},
		{"address of no page", 1, va + 1, page, 0, good},
		{"offset of no page", 1, va, page, 1, good},
		{"beyond the file", 1, va, 9 * page, 0, good},
		{"beyond the file by its offset", 1, va, page, 8 * page, good},
		{"offset that wraps", 1, va, page, 1<<64 - page, good},
		{"past the address width", 1, 1<<39 - page, 2 * page, 0, good},
		{"address that wraps", 1, 1<<64 - page, 2 * page, 0, good},
		{"not sealed", 1, va, page, 0, open},
		{"no file", 1, va, page, 0, -1},
		{"a device", 1, va, page, 0, null},
		{"shared already", 2, va + 3*page, 2 * page, 0, good},
		{"around what is shared", 2, va - page, 6 * page, 0, good},
	} {
		if err := u.m.Share(tt.slot, tt.va, tt.size, tt.fd, tt.offset, true); !errors.Is(err, ErrShare) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, tt := range []struct {
		slot int
		va   device.VA
		size uint64
	}{{2, va, page}, {2, va + page, 4 * page}, {1, va, 4 * page}, {16, va, 4 * page}} {
		if err := u.m.Unshare(tt.slot, tt.va, tt.size); !errors.Is(err, ErrNotShared) {
			t.Errorf("unshare %+v: %v", tt, err)
		}
	}
	if r := u.m.PageIn(2, va, 4, true); r.Resident != 0xf {
		t.Fatalf("%+v", r)
	}
	u.access(2, va, true)
	if err := u.m.Unshare(2, va, 4*page); err != nil {
		t.Error(err)
	}
	if _, f := u.access(2, va, true); f != smmu.Translation {
		t.Errorf("an access after unshare: fault %v", f)
	}
	if n := openFiles(t); n != before+3 {
		t.Errorf("%d descriptors, %d before and three of the test's", n, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestConfigRefuses(t *testing.T) {
	for _, c := range []Config{{VABits: 38}, {VABits: 49}, {VABits: 48, Window: MinWindow - page}, {VABits: 48, Window: MinWindow + 1}, {VABits: 48, Window: MaxWindow + page}} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestGone: without a device page-ins fail with a transient error, and all memory is released.
func TestGone(t *testing.T) {
	u := newUnit(t, 0, 48)
	const va = 0x1000000
	shareMemory(t, u, 0, va, 40, true)
	u.m.PageIn(0, va, 1, true)
	u.gone = errors.New("no device")
	if r := u.m.PageIn(0, va+39*page, 1, true); !errors.Is(r.Err, gup.ErrNotResident) || r.Resident != 0 {
		t.Errorf("%+v", r)
	}
	if err := u.m.Unshare(0, va, 40*page); err != nil {
		t.Error(err)
	}
}

// TestRandom does random operations and checks every access against a model.
func TestRandom(t *testing.T) {
	type area struct {
		slot int
		va   device.VA
		b    []byte
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		u := newUnit(t, MinWindow<<rng.IntN(4), 39+rng.IntN(10))
		var areas []area
		for range 600 {
			switch k := rng.IntN(20); {
			case k == 0 && len(areas) < 12 || len(areas) == 0:
				a := area{slot: rng.IntN(3), va: device.VA(len(areas))<<32 + device.VA(rng.IntN(1<<18))*page}
				n := 1 + rng.IntN(100)
				fd, b := file(t, n, unix.F_SEAL_SHRINK)
				a.b = b
				if err := u.m.Share(a.slot, a.va, uint64(len(b)), fd, 0, true); err == nil {
					areas = append(areas, a)
				} else if !errors.Is(err, ErrShare) {
					t.Fatal(err)
				}
			case k == 1:
				i := rng.IntN(len(areas))
				if err := u.m.Unshare(areas[i].slot, areas[i].va, uint64(len(areas[i].b))); err != nil {
					t.Fatal(err)
				}
				if _, f := u.access(areas[i].slot, areas[i].va, true); f == smmu.NoFault {
					t.Fatal("unshared memory is accessible")
				}
				areas = append(areas[:i], areas[i+1:]...)
			case k == 2:
				a := areas[rng.IntN(len(areas))]
				u.m.Forget(a.slot, a.va, uint64(len(a.b)))
				if _, f := u.access(a.slot, a.va, true); f == smmu.NoFault {
					t.Fatal("forgotten memory is accessible")
				}
			default:
				a := areas[rng.IntN(len(areas))]
				p := rng.IntN(len(a.b) / page)
				at := a.va + device.VA(p*page)
				got, f := u.access(a.slot, at, true)
				if f != smmu.NoFault {
					if r := u.m.PageIn(a.slot, at, 1+rng.IntN(64), true); r.Err != nil || r.Resident&1 == 0 {
						t.Fatalf("seed %d: %+v", seed, r)
					}
					got, f = u.access(a.slot, at, true)
				}
				if f != smmu.NoFault {
					t.Fatalf("seed %d: fault %v after a page-in", seed, f)
				}
				v := byte(rng.Uint32())
				*got = v
				if a.b[p*page] != v {
					t.Fatalf("seed %d: page %d of slot %d belongs to another slot", seed, p, a.slot)
				}
			}
			if s := u.m.Stats(); s.Mapped > s.Window {
				t.Fatalf("%+v", s)
			}
		}
	}
}
