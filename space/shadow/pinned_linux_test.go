package shadow

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/space/shadow/shadowtest"
)

// locks makes a unit pin the memory that is mapped, under the kernel's own limit.
func locks(p *shadowtest.Pins) func(*unit) { return func(u *unit) { u.pins = p } }

// locked returns the bytes that the kernel counts as locked or pinned, and our own counters of
// the same moment.
func locked(t testing.TB, u *unit) (kernel uint64, s Stats) {
	t.Helper()
	kernel, err := u.pins.Locked(func() { s = u.m.Stats() })
	if err != nil {
		t.Fatal(err)
	}
	return kernel, s
}

// TestIdlePins: two nodes with the default window pin only their roots.
func TestIdlePins(t *testing.T) {
	p := shadowtest.New(t, 1<<20)
	a := newUnit(t, 0, 48, locks(p))
	if k, s := locked(t, a); k != chunkSize || s.Pinned != k {
		t.Errorf("%d bytes are locked by an idle node, %+v; want %d", k, s, chunkSize)
	}
}

// TestOnlyWhatWasAskedFor: the fault of one page maps, pins and pages in one page, and a policy's
// range one run; an eviction is one unmap.
func TestOnlyWhatWasAskedFor(t *testing.T) {
	u := newUnit(t, 0, 48, locks(shadowtest.New(t, 4<<20)))
	const va = 0x10000000
	b := shareMemory(t, u, 0, va, 64, true)
	before, _ := locked(t, u)
	for _, at := range []int{5, 20, 6, 4} {
		if r := u.m.PageIn(0, device.VA(va+at*page), 1, true); r.Err != nil || r.Resident != 1 || r.There {
			t.Fatalf("%+v", r)
		}
	}
	there := 0
	for _, e := range u.m.spaces[0].shares[0].resident(Pinned, uint64(len(b))) {
		there += int(e.end-e.start) / page
	}
	k, s := locked(t, u)
	if there != 4 || s.Mapped != 4*page || s.Maps != 4 || k != s.Pinned || k-before-(s.Tables-chunkSize) != 4*page {
		t.Errorf("four pages: %d in memory, %d bytes locked, %+v", there, k-before, s)
	}
	// Pages 0 to 15 except three: two runs.
	if r := u.m.PageIn(0, va, 16, true); r.Resident != 0xffff {
		t.Fatalf("%+v", r)
	}
	if s := u.m.Stats(); s.Maps != 6 || s.Mapped != 17*page {
		t.Errorf("a range around them: %+v", s)
	}
	if r := u.m.PageIn(0, va, 1, true); r.Resident != 1 || !r.There {
		t.Errorf("once more: %+v", r)
	}
	if err := u.m.Unshare(0, va, 64*page); err != nil || u.unmaps != 2 {
		t.Errorf("two places are unmapped by %d calls: %v", u.unmaps, err)
	}
}

// TestForget: pages that were removed from their file are unmapped where mapping pins them, and
// later page-ins have the file's new contents.
func TestForget(t *testing.T) {
	for name, pins := range map[string]bool{"files": false, "pinned": true} {
		t.Run(name, func(t *testing.T) {
			var with []func(*unit)
			if pins {
				with = append(with, locks(shadowtest.New(t, 4<<20)))
			}
			u := newUnit(t, 0, 48, with...)
			const va = 0x10000000
			b := shareMemory(t, u, 0, va, 64, true)
			for _, at := range []device.VA{va, va + 16*page, va + 40*page} {
				if r := u.m.PageIn(0, at, 2, true); r.Resident != 3 {
					t.Fatalf("%+v", r)
				}
			}
			// Page 17 and all behind it, far beyond the end.
			if err := unix.Madvise(b[17*page:], unix.MADV_REMOVE); err != nil {
				t.Fatal(err)
			}
			u.m.Forget(0, va+17*page, 1<<40)
			u.m.Forget(0, va+17*page, math.MaxUint64)
			want := map[device.VA]smmu.Fault{va: smmu.NoFault, va + page: smmu.NoFault, va + 16*page: smmu.NoFault, va + 17*page: smmu.Translation, va + 40*page: smmu.Translation}
			mapped := uint64(6 * page)
			if pins { // the place was unmapped as a whole
				want[va+16*page], mapped = smmu.Translation, 2*page
			}
			for at, f := range want {
				if _, got := u.access(0, at, true); got != f {
					t.Errorf("%v: fault %v, want %v", at, got, f)
				}
			}
			if s := u.m.Stats(); s.Mapped != mapped {
				t.Errorf("%d bytes are mapped, want %d", s.Mapped, mapped)
			}
			u.m.PageIn(0, va+40*page, 1, true)
			p, f := u.access(0, va+40*page, true)
			if f != smmu.NoFault {
				t.Fatal(f)
			}
			if *p = 7; b[40*page] != 7 {
				t.Error("the device does not write the file's page")
			}
			u.m.Forget(-1, va, page)
			u.m.Forget(0, va, 0)
			u.m.Forget(1, va, page)
		})
	}
}

// TestPinnedEqualsTheKernels: under load, Stats and the kernel agree except for the bytes of the
// calls in progress, and neither ever exceeds the bound.
func TestPinnedEqualsTheKernels(t *testing.T) {
	const window = 4 * MinWindow
	u := newUnit(t, window, 48, locks(shadowtest.New(t, Bound(window))))
	const slots, pages, va = 3, 512, 0x10000000
	var wg sync.WaitGroup
	var gate sync.RWMutex // held while the load pauses
	stop := make(chan struct{})
	for slot := range slots {
		fd, _ := file(t, pages, unix.F_SEAL_SHRINK)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(slot), 3))
			for {
				gate.RLock()
				if err := u.m.Share(slot, va, pages*page, fd, 0, true); err != nil {
					t.Error(err)
				}
				gate.RUnlock()
				for range 200 {
					select {
					case <-stop:
						return
					default:
					}
					gate.RLock()
					if r := u.m.PageIn(slot, device.VA(va+rng.IntN(pages)*page), 1+rng.IntN(20), true); r.Err != nil {
						t.Error(r.Err)
					}
					gate.RUnlock()
				}
				gate.RLock()
				if rng.IntN(2) == 0 {
					u.m.Drop(slot)
				} else {
					u.m.Idle(0)
					if err := u.m.Unshare(slot, va, pages*page); err != nil {
						t.Error(err)
					}
				}
				gate.RUnlock()
			}
		})
	}
	equal, most := 0, uint64(0)
	for i := range 2000 {
		if i%10 == 0 {
			gate.Lock()
			u.m.sweeps.Wait()
		}
		k, s := locked(t, u)
		if i%10 == 0 {
			gate.Unlock()
		}
		// Bytes in Moving may be locked or not.
		if diff := max(k, s.Pinned) - min(k, s.Pinned); diff > s.Moving {
			t.Fatalf("%d bytes are locked, and %+v", k, s)
		}
		if s.Moving == 0 {
			equal++
		}
		most = max(most, k)
	}
	close(stop)
	wg.Wait()
	u.m.sweeps.Wait()
	if k, s := locked(t, u); k != s.Pinned || s.Moving != 0 {
		t.Errorf("at rest %d bytes are locked, and %+v", k, s)
	}
	if equal < 200 || most > Bound(window) || most < window/2 {
		t.Errorf("at most %d bytes were locked, the bound is %d; %d checks at rest", most, Bound(window), equal)
	}
	t.Logf("equal to the byte with no call in progress: %d of 2000 checks; most %d of %d", equal, most, Bound(window))
}

// TestLimit: a limit of the kernel below the window causes evictions, and page-ins continue; a
// limit that leaves nothing fails them, with advice in the log.
func TestLimit(t *testing.T) {
	const limit = chunkSize + chunkSize + 8*page
	p := shadowtest.New(t, limit)
	var log strings.Builder
	u := newUnit(t, 16*MinWindow, 48, locks(p))
	u.m.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	const va = 0x10000000
	shareMemory(t, u, 0, va, 512, true)
	for at := range 512 {
		if r := u.m.PageIn(0, device.VA(va+at*page), 1, true); r.Err != nil {
			t.Fatalf("page %d: %v", at, r.Err)
		}
		if k, s := locked(t, u); k > limit || k != s.Pinned {
			t.Fatalf("page %d: %d bytes are locked, limit %d, %+v", at, k, limit, s)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
	u.m.Idle(0)
	shadowtest.Limit(t, chunkSize)
	r := u.m.PageIn(0, va, 1, true)
	if !errors.Is(r.Err, gup.ErrUnmappable) || !errors.Is(r.Err, unix.ENOMEM) || r.Resident != 0 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(log.String(), "LimitMEMLOCK") || !strings.Contains(log.String(), "--window") {
		t.Errorf("logged: %s", &log)
	}
}

// TestShort: a call for which the kernel lacks memory is retried after an eviction.
func TestShort(t *testing.T) {
	for _, errno := range []error{unix.ENOMEM, unix.ENOSPC, unix.EFAULT} {
		for _, times := range []int{1, 2} {
			u := newUnit(t, 0, 48)
			const va = 0x10000000
			shareMemory(t, u, 0, va, 64, true)
			shareMemory(t, u, 1, va, 16, true)
			u.m.PageIn(1, va, 4, true)
			if r := u.m.PageIn(0, va+32*page, 1, true); r.Err != nil {
				t.Fatal(r.Err)
			}
			left := times
			u.refuse = func(uint64, uint64) error {
				if left == 0 {
					return nil
				}
				left--
				return fmt.Errorf("mapping: %w", errno)
			}
			r := u.m.PageIn(0, va, 1, true)
			s := u.m.Stats()
			if got := errors.Is(r.Err, gup.ErrUnmappable) && errors.Is(r.Err, errno); got != (times == 2) || (r.Resident == 1) == got {
				t.Errorf("%v, %d times: %+v", errno, times, r)
			}
			if s.Evictions != 1 || left != 0 {
				t.Errorf("%v, %d times: %+v, %d refusals left", errno, times, s, left)
			}
			// A page that cannot be entered is not counted: it faults again.
			if r := u.m.PageIn(0, va, 2, true); r.Resident != 3 {
				t.Errorf("%+v", r)
			}
			for slot, at := range map[int]device.VA{0: va, 1: va} {
				u.m.PageIn(slot, at, 1, true)
				if _, f := u.access(slot, at, true); f != smmu.NoFault {
					t.Errorf("slot %d: fault %v", slot, f)
				}
			}
		}
	}
}

// TestTablesAreBounded: pages far from each other need more tables than the bound permits; places
// are evicted to free tables.
func TestTablesAreBounded(t *testing.T) {
	u := newUnit(t, 4<<20, 48, locks(shadowtest.New(t, Bound(4<<20))))
	fd, _ := file(t, 1, unix.F_SEAL_SHRINK)
	for i := range 400 {
		va := device.VA(i+1) << 30
		if err := u.m.Share(0, va, page, fd, 0, true); err != nil {
			t.Fatal(err)
		}
		if r := u.m.PageIn(0, va, 1, true); r.Err != nil {
			t.Fatalf("%d: %v", i, r.Err)
		}
		if _, f := u.access(0, va, true); f != smmu.NoFault {
			t.Fatalf("%d: fault %v", i, f)
		}
	}
	s := u.m.Stats()
	if s.Tables > tablePages(4<<20)*page || s.Evictions == 0 {
		t.Errorf("%+v", s)
	}
	// Unused tables are unmapped, the roots stay.
	u.m.Idle(0)
	if k, s := locked(t, u); k != chunkSize || s.Pinned != k {
		t.Errorf("idle: %d bytes are locked, %+v", k, s)
	}
}

// TestIdle: memory that was not used for the time is unmapped, used memory stays.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, 0, 48)
		const va = 0x10000000
		shareMemory(t, u, 0, va, 64, true)
		u.m.PageIn(0, va, 1, true)
		u.m.PageIn(0, va+16*page, 1, true)
		u.m.PageIn(0, va+32*page, 1, true)
		time.Sleep(time.Second)
		u.m.Used(0, va, page)              // announced
		u.m.PageIn(0, va+16*page, 1, true) // faulted
		time.Sleep(time.Second)
		u.m.Idle(2 * time.Second)
		for at, want := range map[device.VA]smmu.Fault{va: smmu.NoFault, va + 16*page: smmu.NoFault, va + 32*page: smmu.Translation} {
			if _, f := u.access(0, at, true); f != want {
				t.Errorf("%v: fault %v, want %v", at, f, want)
			}
		}
		time.Sleep(2 * time.Second)
		u.m.Idle(2 * time.Second)
		if s := u.m.Stats(); s.Mapped != 0 || s.Tables != chunkSize || s.Evictions != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// TestPhysical: where nothing pins memory, only huge pages of a hugetlb file can be shared, and
// the refusal says why.
func TestPhysical(t *testing.T) {
	fd, _ := file(t, 512, unix.F_SEAL_SHRINK)
	s := &share{size: 2 << 20}
	err := checkFile(Physical, s, fd)
	if !errors.Is(err, ErrShare) || !strings.Contains(err.Error(), "physical addresses") || !strings.Contains(err.Error(), "MFD_HUGETLB") {
		t.Errorf("a memfd of small pages: %v", err)
	}
	for _, k := range []Kind{Files, Pinned} {
		if err := checkFile(k, s, fd); err != nil {
			t.Errorf("kind %d: %v", k, err)
		}
	}
	huge, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("no memfd of huge pages of 2 MiB: %v", err)
	}
	defer unix.Close(huge)
	if err := checkFile(Physical, s, huge); err != nil {
		t.Errorf("a memfd of huge pages: %v", err)
	}
	if seals, err := unix.FcntlInt(uintptr(huge), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_FUTURE_WRITE == 0 {
		t.Errorf("its pages can be punched out: seals %#x, %v", seals, err)
	}
	for _, k := range []Kind{Files, Pinned, Physical} {
		if err := checkFile(k, &share{size: 1 << 20}, huge); !errors.Is(err, ErrShare) {
			t.Errorf("kind %d takes half a huge page: %v", k, err)
		}
	}
	last, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB) // F_SEAL_SEAL
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(last)
	if err := checkFile(Physical, s, last); !errors.Is(err, ErrShare) || !strings.Contains(err.Error(), "F_SEAL_FUTURE_WRITE") {
		t.Errorf("huge pages that can be punched out: %v", err)
	}
}

// TestAddresses takes pieces from ranges like those of real machines.
func TestAddresses(t *testing.T) {
	a := newAddresses(0x10000, []Range{{0, 0xfffff}, {0x123456, 0x12ffff}, {0xfef00001, 0xfef2ffff}, {1 << 47, 1<<64 - 1}})
	if at, err := a.carve(0xe0000); err != nil || at != 0x10000 {
		t.Errorf("carved at %#x, %v", at, err)
	}
	for _, want := range []uint64{0xf0000, 0xfef10000, 0xfef20000, 1 << 47} {
		if at, ok := a.take(); !ok || at != want {
			t.Errorf("%#x, want %#x", at, want)
		}
	}
	a.give(0xfef10000)
	if at, ok := a.take(); !ok || at != 0xfef10000 {
		t.Errorf("%#x", at)
	}
	if _, err := a.carve(1 << 48); !errors.Is(err, ErrConfig) {
		t.Errorf("more than is free: %v", err)
	}
	few := newAddresses(0x10000, []Range{{0x10000, 0x1ffff}})
	if _, ok := few.take(); !ok {
		t.Error("no piece")
	}
	if at, ok := few.take(); ok {
		t.Errorf("%#x twice", at)
	}
}

// BenchmarkPageIn is the fault of one page where mapping pins: a page that was never touched is
// brought in, mapped and entered. pages/fault is the number of pages mapped for it.
func BenchmarkPageIn(b *testing.B) {
	const window, va = 4 << 20, 0x10000000
	u := newUnit(b, window, 48, locks(shadowtest.New(b, Bound(window))))
	const faults = window / page / 16
	for i := 0; b.Loop(); i++ {
		if i%faults == 0 {
			b.StopTimer()
			u.m.Drop(0)
			u.m.sweeps.Wait()
			fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err == nil {
				err = unix.Ftruncate(fd, window)
			}
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
			}
			if err == nil {
				err = u.m.Share(0, va, window, fd, 0, true)
			}
			if err != nil {
				b.Fatal(err)
			}
			_ = unix.Close(fd)
			b.StartTimer()
		}
		if r := u.m.PageIn(0, device.VA(va+i%faults*16*page), 1, true); r.Err != nil {
			b.Fatal(r.Err)
		}
	}
	b.ReportMetric(float64(u.m.Stats().Mapped)/page/float64((b.N-1)%faults+1), "pages/fault")
}
