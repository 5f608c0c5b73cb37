package view

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/uffd"
)

const page = device.PageSize

// memfd creates a file of so many pages with the given seals.
func memfd(t testing.TB, pages int, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("view", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(pages*page)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// rig is a View and the shared memory as mapped in its process.
type rig struct {
	*View
	t   testing.TB
	fd  int
	own []byte
}

const at = device.VA(0x7000_0000_5000) // not at the beginning of a window

func start(t testing.TB, pages int) *rig {
	t.Helper()
	v, err := New()
	if err != nil {
		t.Skipf("this kernel has no userfaultfd for a view, as Linux 5.14 has: %v", err)
	}
	r := &rig{View: v, t: t, fd: memfd(t, pages, unix.F_SEAL_SHRINK)}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	if r.own, err = unix.Mmap(r.fd, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(r.own) })
	if err := v.Share(at, uint64(pages*page), r.fd, 0, true); err != nil {
		t.Fatal(err)
	}
	return r
}

// registered also shares the memory at the process's own addresses, with the userfaultfd for its
// missing pages.
func (r *rig) registered() (device.VA, *uffd.Holes) {
	r.t.Helper()
	if !uffd.Protects() {
		r.t.Skip("this kernel has no userfaultfd with write-protect faults (Linux 5.19, on arm64 6.10)")
	}
	h, err := uffd.NewHoles()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = h.Close() })
	va := device.VA(uintptr(base(r.own)))
	if err := h.Add(va, uint64(len(r.own))); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Share(va, uint64(len(r.own)), r.fd, 0, true); err != nil {
		r.t.Fatal(err)
	}
	return va, h
}

// touch touches a page in the process.
func (r *rig) touch(page0 int) { r.own[page0*page] = byte(page0 + 1) }

// resident returns a bitmap of the first 64 pages that the file has.
func (r *rig) resident() (bits uint64) {
	r.t.Helper()
	for i := range min(64, len(r.own)/page) {
		at, err := unix.Seek(r.fd, int64(i*page), unix.SEEK_DATA)
		if err == nil && at == int64(i*page) {
			bits |= 1 << i
		} else if err != nil && !errors.Is(err, unix.ENXIO) {
			r.t.Fatal(err)
		}
	}
	return bits
}

func (r *rig) punch(first, pages int) {
	r.t.Helper()
	if err := unix.Fallocate(r.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(first*page), int64(pages*page)); err != nil {
		r.t.Fatal(err)
	}
}

// TestMisses: a page that is not entered, not present or not shared is a miss and is not paged
// in.
func TestMisses(t *testing.T) {
	r := start(t, 40)
	buf := make([]byte, page)
	one := [][]byte{buf}
	if r.Has(at, 1, false) || r.ReadV(one, at) || r.WriteV(one, at) || r.WriteWords(buf[:16], at) {
		t.Error("an absent page is there")
	}
	if got := r.resident(); got != 0 {
		t.Fatalf("pages %#x were brought in", got)
	}
	r.Enter(at, 40, ^uint64(0)) // none of them is present
	if r.Has(at, 1, false) || r.resident() != 0 {
		t.Error("to enter an absent page brings it in")
	}
	r.touch(0)
	if r.Has(at, 1, false) || r.ReadV(one, at) {
		t.Error("a page is there that nobody entered")
	}
	r.touch(1)
	r.touch(3)
	r.Enter(at, 4, 0b1011)
	if !r.Has(at, 2, true) || r.Has(at, 3, true) || r.Has(at+2*page, 1, false) || !r.Has(at+3*page, 1, true) {
		t.Error("not what was entered is there")
	}
	for _, va := range []device.VA{at - page, at + 40*page, 0, ^device.VA(0) &^ (page - 1)} {
		if r.Has(va, 1, false) || r.ReadV(one, va) {
			t.Errorf("%v is shared", va)
		}
	}
	if r.Has(at+39*page, 2, false) || r.WriteV([][]byte{buf, buf}, at+39*page) {
		t.Error("what begins in a share passes its end")
	}
	// Punched out: the access misses, the page stays absent, and it can be entered again.
	r.punch(0, 2)
	if r.Has(at, 2, true) || r.ReadV(one, at) || r.resident() != 1<<3 {
		t.Errorf("pages that were punched out: resident %#x", r.resident())
	}
	if got := r.Enter(at, 4, 0b1000); got != 1<<3 || !r.Has(at+3*page, 1, true) {
		t.Error("a neighbour that stayed is not entered again")
	}
	r.touch(0)
	if r.Has(at, 1, true) {
		t.Error("entered by itself")
	}
	r.Enter(at, 1, 1)
	if !r.Has(at, 1, true) || !r.ReadV(one, at) || buf[0] != 1 {
		t.Error("not entered anew")
	}
	r.punch(0, 1)
	r.Forget(at, 40*page)
	if s := r.list[0]; s.bits(0, 40) != 0 {
		t.Errorf("entered are %#b, want none until the next access", s.bits(0, 40))
	}
	r.list[0].clear(0, ^uint64(0))
	r.touch(0)
	r.Enter(at, 4, 0b1001) // the last is entered already
	if !r.Has(at, 1, false) || !r.Has(at+3*page, 1, false) {
		t.Error("not entered anew")
	}
}

// TestBytes: the process reads what is written here, and the reverse, across the ends of buffers
// and pages.
func TestBytes(t *testing.T) {
	r := start(t, 8)
	for i := range r.own {
		r.own[i] = byte(i * 7)
	}
	r.Enter(at, 8, 0xff)
	got := make([]byte, 3*page)
	if !r.ReadV([][]byte{got[:100], got[100:9000], got[9000:]}, at+777) || !bytes.Equal(got, r.own[777:777+3*page]) {
		t.Error("other bytes are read")
	}
	want := bytes.Clone(r.own)
	for i := range got {
		got[i] = byte(i * 13)
	}
	copy(want[4099:], got)
	if !r.WriteV([][]byte{got[:5000], got[5000:]}, at+4099) || !bytes.Equal(r.own, want) {
		t.Error("other bytes are written")
	}
	words := make([]byte, 16)
	binary.NativeEndian.PutUint64(words, 11)
	binary.NativeEndian.PutUint64(words[8:], 22)
	copy(want[6*page+8:], words)
	if !r.WriteWords(words, at+6*page+8) || !bytes.Equal(r.own, want) {
		t.Error("other words are written")
	}
	if r.WriteWords(words, at+4) || r.WriteWords(words[:8], at) || r.WriteWords(words, at+8*page-8) || !bytes.Equal(r.own, want) {
		t.Error("words that are none, or pass the end, are written")
	}
}

// TestWindow: for few pages the window is the shared part of their 64 KiB; for more it is those
// pages.
func TestWindow(t *testing.T) {
	r := start(t, 40)
	for _, tt := range []struct {
		va    device.VA
		pages int
		first device.VA
		n     int
	}{
		{at, 1, at, 11},                            // at is the sixth page of its window
		{at + 11*page, 1, at + 11*page, 16},        // the first of the next one
		{at + 10*page, 2, at, 27},                  // of both
		{at + 39*page + 5, 1, at + 27*page, 13},    // the last one
		{at + 26*page + 4000, 1, at + 11*page, 16}, // inside a page
		{at + 4*page, 3, at + 4*page, 3},           // not few
		{at + 4*page, 30, at + 4*page, 30},
	} {
		if va, n, ok := r.Window(tt.va, tt.pages, false); va != tt.first || n != tt.n || !ok {
			t.Errorf("window of %d pages at %v: %v, %d, %v, want %v, %d", tt.pages, tt.va, va, n, ok, tt.first, tt.n)
		}
	}
	if _, _, ok := r.Window(at-page, 1, false); ok {
		t.Error("a window of what is not shared")
	}
}

// TestShareRefused has a row for each kind of memory that cannot be shared.
func TestShareRefused(t *testing.T) {
	r := start(t, 4)
	good := memfd(t, 8, unix.F_SEAL_SHRINK)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(unix.Close(pipe[0]), unix.Close(pipe[1])) })
	const other = device.VA(0x10_0000)
	for name, tt := range map[string]struct {
		va           device.VA
		size, offset uint64
		fd           int
	}{
		"not sealed":        {other, page, 0, memfd(t, 8, unix.F_SEAL_GROW)},
		"a pipe":            {other, page, 0, pipe[0]},
		"no descriptor":     {other, page, 0, -1},
		"nothing":           {other, 0, 0, good},
		"half a page":       {other, page / 2, 0, good},
		"address in a page": {other + 8, page, 0, good},
		"offset in a page":  {other, page, 8, good},
		"past the end":      {other, 2 * page, 7 * page, good},
		"offset at the top": {other, page, 1<<63 - 2*page, good},
		"address wraps":     {^device.VA(0) - page + 1, 2 * page, 0, good},
		"too large":         {other, MaxBytes + page, 0, good},
		"same":              {at, 4 * page, 0, good},
		"overlaps behind":   {at + 3*page, 4 * page, 0, good},
		"overlaps before":   {at - page, 2 * page, 0, good},
		"around":            {at - page, 8 * page, 0, good},
	} {
		if err := r.Share(tt.va, tt.size, tt.fd, tt.offset, true); !errors.Is(err, ErrShare) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if huge, err := unix.MemfdCreate("view", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB); err == nil {
		defer unix.Close(huge)
		_ = unix.Ftruncate(huge, 2<<20)
		_, _ = unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
		if err := r.Share(other, 2<<20, huge, 0, true); !errors.Is(err, ErrShare) {
			t.Errorf("huge pages: %v", err)
		}
	}
	if err := r.Share(at+4*page, 4*page, good, 4*page, false); err != nil {
		t.Errorf("beside another one: %v", err)
	}
	own, err := unix.Mmap(good, 4*page, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(own)
	own[0] = 5
	r.Enter(at+4*page, 1, 1)
	buf := [][]byte{make([]byte, 16)}
	if !r.ReadV(buf, at+4*page) || buf[0][0] != 5 || r.WriteV(buf, at+4*page) || r.Has(at+4*page, 1, true) || r.WriteWords(buf[0], at+4*page) {
		t.Error("memory that is shared to be read is written")
	}
	if _, n := r.Shares(at+4*page, 1, true); n != 0 {
		t.Error("shared for writing")
	}
	if start, n := r.Shares(at+6*page+9, 64, false); n != 2 || start != at+4*page {
		t.Errorf("%d pages shared, from %v", n, start)
	}
}

func TestUnshare(t *testing.T) {
	r := start(t, 4)
	r.touch(0)
	r.Enter(at, 1, 1)
	if r.Unshare(at, page) || r.Unshare(at+page, 4*page) || !r.Has(at, 1, true) {
		t.Error("other bounds unshare")
	}
	if !r.Unshare(at, 4*page) || r.Has(at, 1, true) || r.Unshare(at, 4*page) {
		t.Error("not unshared")
	}
	if err := r.Share(at, 4*page, r.fd, 0, true); err != nil || r.Has(at, 1, true) {
		t.Errorf("shared anew: %v", err)
	}
	for i := range MaxShares {
		err := r.Share(at+device.VA(i+10)*page, page, r.fd, 0, true)
		if (err == nil) != (i < MaxShares-1) {
			t.Fatalf("share %d: %v", i, err)
		}
	}
}

// TestChanges: a process punches pages out, shares and unshares during accesses. They neither
// hang nor fault here, and bytes are the process's or zeros.
func TestChanges(t *testing.T) {
	r := start(t, 64)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	ending := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	wg.Go(func() {
		for !ending() {
			i := rand.IntN(64)
			r.touch(i)
			if rand.IntN(3) == 0 {
				_ = unix.Fallocate(r.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(i*page), page)
			}
		}
	})
	wg.Go(func() {
		for !ending() {
			if r.Unshare(at, 64*page) {
				if err := r.Share(at, 64*page, r.fd, 0, true); err != nil {
					t.Error(err)
					return
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	hits := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		i := rand.IntN(60)
		va := at + device.VA(i)*page
		r.Enter(va, 4, 15)
		var buf [page]byte
		if r.Has(va, 1, true) && r.ReadV([][]byte{buf[:]}, va) {
			hits++
			if buf[0] != 0 && buf[0] != byte(i+1) {
				t.Fatalf("page %d has %d", i, buf[0])
			}
		}
		r.WriteV([][]byte{buf[1:2]}, va+1)
		r.WriteWords(make([]byte, 16), va+64)
	}
	close(stop)
	wg.Wait()
	if hits == 0 {
		t.Error("nothing was ever there")
	}
}

// allowance is a Budget.
type allowance struct{ left, taken int }

func (a *allowance) Take() bool {
	if a.taken == a.left {
		return false
	}
	a.taken++
	return true
}

func (a *allowance) Give() { a.taken-- }

// TestBudget: each page table with an entered page counts, one for 2 MiB. Without budget a page
// misses, and unmapping the memory returns its tables.
func TestBudget(t *testing.T) {
	a := &allowance{left: 3}
	v, err := NewWithin(a)
	if err != nil {
		t.Skipf("this kernel has no userfaultfd for a view, as Linux 5.14 has: %v", err)
	}
	const step, blocks, size = tablePages * page, 5, 6 * tablePages * page
	fd := memfd(t, size/page, unix.F_SEAL_SHRINK)
	if err := v.Share(at, size, fd, 0, true); err != nil {
		t.Fatal(err)
	}
	entered := 0
	for i := range blocks {
		// In the middle of a page table's range, with the whole window.
		off := int(-base(v.list[0].b)%step) + i*step + step/2
		if _, err := unix.Pwrite(fd, []byte{1}, int64(off)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if va := at + device.VA(off); v.Look(va, 1) == 0 && v.Has(va, 1, true) {
				entered++
			}
		}
	}
	if entered != 6 || a.taken != 3 {
		t.Errorf("%d looks of 10 entered a page, with %d page tables: want 6 and 3", entered, a.taken)
	}
	if !v.Unshare(at, size) || a.taken != 0 {
		t.Errorf("%d page tables are kept of what is shared no more", a.taken)
	}
	if err := v.Share(at, size, fd, 0, true); err != nil {
		t.Fatal(err)
	}
	if v.Look(at+device.VA(int(-base(v.list[0].b)%step)+step/2), 1); a.taken != 1 {
		t.Errorf("shared anew it has %d page tables, want 1", a.taken)
	}
	if err := v.Close(); err != nil || a.taken != 0 {
		t.Errorf("closed: %v; %d page tables are kept", err, a.taken)
	}
}

// TestForgetMakesNoCall: a forgotten page misses whether or not the file has it, so that Forget
// needs no system call for each page.
func TestForgetMakesNoCall(t *testing.T) {
	r := start(t, 64)
	r.punch(0, 64)
	r.list[0].add(0, ^uint64(0)) // as if entered
	r.Forget(at, 63*page)
	if got := r.list[0].bits(0, 64); got != 1<<63 {
		t.Errorf("entered are %#x, want the one that was not named", got)
	}
	for i := range 64 {
		r.touch(i)
	}
	r.Look(at, 64)
	r.Forget(at, 64*page)
	if got := r.list[0].bits(0, 64); got != 0 {
		t.Errorf("entered are %#x: the file was asked for its pages", got)
	}
}

func BenchmarkForget16G(b *testing.B) {
	v, err := New()
	if err != nil {
		b.Skipf("this kernel has no userfaultfd for a view, as Linux 5.14 has: %v", err)
	}
	defer v.Close()
	fd := memfd(b, MaxBytes/page, unix.F_SEAL_SHRINK)
	if err := v.Share(at, MaxBytes, fd, 0, true); err != nil {
		b.Fatal(err)
	}
	s := v.list[0]
	for b.Loop() {
		b.StopTimer()
		for i := range s.entered {
			s.entered[i] = 1
		}
		b.StartTimer()
		v.Forget(at, MaxBytes)
	}
}

func BenchmarkRead4K(b *testing.B) {
	r := start(b, 16)
	for i := range 16 {
		r.touch(i)
	}
	r.Enter(at, 16, 0xffff)
	buf := [][]byte{make([]byte, page)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if va := at + device.VA(i%16)*page; !r.Has(va, 1, false) || !r.ReadV(buf, va) {
			b.Fatal("missed")
		}
	}
}

func BenchmarkMiss(b *testing.B) {
	r := start(b, 16)
	b.ReportAllocs()
	buf := [][]byte{make([]byte, 8)}
	for b.Loop() {
		r.list[0].add(0, 1)
		if r.ReadV(buf, at) {
			b.Fatal("there")
		}
	}
}

// A page-in of 64 pages, of which so many are present: the cost is that of the missing ones.
func BenchmarkPageIn(b *testing.B) {
	for _, there := range []int{0, 32, 61, 64} {
		b.Run(fmt.Sprintf("%d-there", there), func(b *testing.B) {
			r := start(b, 64)
			va, h := r.registered()
			if err := r.Watch(va, h.FD(), true, func(unmap func()) { unmap() }); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				r.punch(0, 64)
				for i := range there {
					r.touch(i * 64 / there)
				}
				r.Forget(va, 64*page)
				b.StartTimer()
				if entered, _ := r.PageIn(va, 64, true); entered != ^uint64(0) {
					b.Fatalf("entered %#x", entered)
				}
			}
		})
	}
}

// TestFill: untouched pages of shared memory are filled and entered; the rest keep their bytes.
// Without a userfaultfd, or where the process has mapped something else, nothing is filled.
func TestFill(t *testing.T) {
	r := start(t, 70)
	if got := r.Fill(at, 4, 0xf); got != 0 {
		t.Errorf("filled %#x without a userfaultfd", got)
	}
	va, h := r.registered()
	if err := r.Watch(va, -1, true, func(unmap func()) { unmap() }); !errors.Is(err, uffd.ErrNotOne) {
		t.Errorf("no descriptor: %v", err)
	}
	if err := r.Watch(va, h.FD(), true, func(unmap func()) { unmap() }); err != nil {
		t.Fatal(err)
	}
	if err := r.Watch(va, h.FD(), true, func(unmap func()) { unmap() }); !errors.Is(err, ErrShare) {
		t.Errorf("a second descriptor: %v", err)
	}
	if err := r.Watch(va+page, h.FD(), true, func(unmap func()) { unmap() }); !errors.Is(err, ErrShare) {
		t.Errorf("nothing is shared from there on: %v", err)
	}
	r.touch(2)
	if got := r.Fill(va+100, 64, 0xff0f); got != 0xff0b {
		t.Errorf("filled %#x, want those that were asked for and nobody had touched", got)
	}
	if r.Has(va, 1, true) {
		t.Error("what is filled is entered by itself")
	}
	if got := r.Enter(va, 64, 0xffff); got != 0xff0f || r.own[2*page] != 3 {
		t.Errorf("entered %#x, byte %d", got, r.own[2*page])
	}
	if !r.Has(va+8*page, 8, true) || r.resident() != 0xff0f {
		t.Errorf("resident %#x", r.resident())
	}
	// Punched out and filled again, it is entered again.
	r.punch(8, 4)
	if got := r.Fill(va+8*page, 4, 0xf); got != 0xf || r.Enter(va+8*page, 4, 0xf) != 0xf || !r.Has(va+8*page, 4, true) {
		t.Errorf("filled %#x of what was punched out, and it is missed", got)
	}
	if got := r.Fill(va+69*page, 64, 1); got != 1 {
		t.Errorf("filled %#x of the last page", got)
	}
	if got := r.Fill(va+70*page, 1, 1); got != 0 {
		t.Errorf("filled %#x past the end", got)
	}
}

// TestByFile has a row for each state of shared memory: which of its first eight pages Look
// enters, and which PageIn fills and enters.
func TestByFile(t *testing.T) {
	for _, tt := range []struct {
		name            string
		prepare         func(r *rig, va device.VA) device.VA // the first page
		absent          uint64
		entered, filled uint64
	}{
		{"nobody has touched it", func(_ *rig, va device.VA) device.VA { return va }, 0xff, 0xff, 0xff},
		{"some are there", func(r *rig, va device.VA) device.VA { r.touch(1); r.touch(6); return va }, 0xbd, 0xff, 0xbd},
		{"the file has one that the process has not mapped", func(r *rig, va device.VA) device.VA {
			if _, err := unix.Pwrite(r.fd, []byte{1}, 3*page); err != nil {
				r.t.Fatal(err)
			}
			return va
		}, 0xf7, 0xff, 0xf7},
		{"punched out", func(r *rig, va device.VA) device.VA {
			r.touch(0)
			r.Look(va, 8)
			r.punch(0, 1)
			return va
		}, 0xff, 0xff, 0xff},
		{"its end", func(_ *rig, va device.VA) device.VA { return va + 5*page }, 0xff, 7, 7},
		{"past its end", func(_ *rig, va device.VA) device.VA { return va + 8*page }, 0xff, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, 8)
			va, h := r.registered()
			if err := r.Watch(va, h.FD(), true, func(unmap func()) { unmap() }); err != nil {
				t.Fatal(err)
			}
			at := tt.prepare(r, va)
			if got := r.Look(at, 8); got != tt.absent {
				t.Errorf("absent %#x, want %#x", got, tt.absent)
			}
			if entered, filled := r.PageIn(at, 8, true); entered != tt.entered || filled != tt.filled {
				t.Errorf("entered %#x and filled %#x, want %#x and %#x", entered, filled, tt.entered, tt.filled)
			}
			if n := bits.OnesCount64(tt.entered); n > 0 && (!r.Has(at, n, true) || r.Look(at, n) != 0) {
				t.Error("what is entered is missed")
			}
		})
	}
	r := start(t, 8)
	if entered, filled := r.PageIn(at, 8, true); entered != 0 || filled != 0 || r.resident() != 0 {
		t.Errorf("entered %#x and filled %#x without a userfaultfd", entered, filled)
	}
}

// TestUnmapped: memory that the process unmaps, maps over or moves without Unshare leaves the
// view before the process continues, and can be shared again. No write to an entered page is lost
// silently.
func TestUnmapped(t *testing.T) {
	for name, unmap := range map[string]func(b []byte) error{
		"munmap": func(b []byte) error {
			_, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(base(b)), uintptr(len(b)), 0)
			return errnoOf(errno)
		},
		"a part": func(b []byte) error {
			_, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(base(b))+page, page, 0)
			return errnoOf(errno)
		},
		"mapped over": func(b []byte) error {
			_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
			return err
		},
		"moved": func(b []byte) error {
			_, _, errno := unix.Syscall6(unix.SYS_MREMAP, uintptr(base(b)), uintptr(len(b)), uintptr(len(b)), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED,
				uintptr(base(b))+1<<30, 0)
			return errnoOf(errno)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, 8)
			va, h := r.registered()
			if err := errors.Join(r.Watch(va, h.FD(), false, func(unmap func()) { unmap() }), h.Close()); err != nil {
				t.Fatal(err)
			}
			r.touch(1)
			if r.Look(va, 8) != 0xfd || !r.WriteV([][]byte{{1}}, va+page) {
				t.Fatal("not seen")
			}
			before, _ := r.Count()
			if err := unmap(r.own); err != nil {
				t.Fatal(err)
			}
			if n, watched := r.Count(); r.WriteV([][]byte{{2}}, va+page) || r.Overlaps(va, 1) || n != before-1 || watched != 0 {
				t.Error("it is seen still")
			}
		})
	}
}

func errnoOf(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
