package gup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/folios/foliotest"
	"github.com/exanet/pfd/space/uffd"
)

// shareFolios shares three folios of n pages. They come in together if the setting allows it.
func shareFolios(t *testing.T, n int) *sharing {
	t.Helper()
	size, align := 3*n*page, uintptr(n*page)
	s := newSharing(t, size)
	all := uintptr(size) + align
	p, err := unix.MmapPtr(-1, 0, nil, all, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.MunmapPtr(p, all) })
	p2, err := unix.MmapPtr(s.fd, 0, unsafe.Add(p, -uintptr(p)%align), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		t.Fatal(err)
	}
	s.b = unsafe.Slice((*byte)(p2), size)
	s.va = device.VA(uintptr(p2))
	if err := unix.Madvise(s.b, unix.MADV_HUGEPAGE); err != nil {
		t.Skipf("this kernel has no folios for shared memory: %v", err)
	}
	if err := s.v.ShareFolios(s.va, uint64(size), s.fd, 0, true, n); err != nil {
		t.Fatal(err)
	}
	if uffd.Protects() {
		s.watch(t, false)
	}
	s.p = open(t, os.Getpid(), os.Getpid())
	s.Pager = NewShared(s.p, s.v)
	return s
}

func (s *sharing) at(page0 int) device.VA { return s.va + device.VA(page0)*page }

// fault pages in one page for a write as a fault does, after a walk.
func (s *sharing) fault(t *testing.T, page0 int) Result {
	t.Helper()
	if _, err := s.p.Walk(s.at(page0), 1, true); err != nil {
		t.Fatal(err)
	}
	return s.PageIn(s.at(page0), 1, true)
}

// TestFolios: a page-in brings in whole folios, enters all pages of them that the mapping permits,
// and counts each page once. Where the kernel brings in single pages the pages that are needed come.
func TestFolios(t *testing.T) {
	span := func(n int) uint64 { return ^uint64(0) >> (64 - n) }
	for _, kib := range []int{16, 64, 256} {
		n := kib << 10 / page
		for _, tt := range []struct {
			name string
			kib  int // of the folios that the kernel brings in; 0: single pages
			do   func(t *testing.T, s *sharing)
		}{
			{"one page", kib, func(t *testing.T, s *sharing) {
				s.want(t, "first", s.fault(t, n+1), Result{Resident: 1, New: 1, Beside: n - 1})
				if !s.v.Has(s.at(n), n, true) || s.v.Has(s.at(n-1), 1, true) || s.v.Has(s.at(2*n), 1, true) {
					t.Error("not exactly one folio is entered")
				}
				s.want(t, "again", s.PageIn(s.at(n), n, true), Result{Resident: span(n), There: true})
			}},
			{"pages of two folios", kib, func(t *testing.T, s *sharing) {
				s.want(t, "two", s.PageIn(s.at(n-1), 2, true), Result{Resident: 3, New: 3, Beside: min(2*n, 64) - 2}) // a call sees 64 pages
			}},
			{"as many as fit", kib, func(t *testing.T, s *sharing) {
				s.want(t, "64", s.PageIn(s.at(0), 64, true), Result{Resident: span(min(64, 3*n)), New: span(min(64, 3*n))})
			}},
			{"the process has touched one", kib, func(t *testing.T, s *sharing) {
				s.b[0] = 7
				s.want(t, "others", s.PageIn(s.at(1), 2, true), Result{Resident: 3, There: true})
				if !s.v.Has(s.at(0), n, true) || s.b[0] != 7 {
					t.Error("not the whole folio is entered")
				}
			}},
			{"the file has one", kib, func(t *testing.T, s *sharing) {
				if _, err := unix.Pwrite(s.fd, []byte{7}, 2*page); err != nil {
					t.Fatal(err)
				}
				r := s.PageIn(s.at(0), n, true)
				if r.Resident != span(n) || r.Err != nil || s.b[2*page] != 7 {
					t.Errorf("%+v, byte %d", r, s.b[2*page])
				}
			}},
			{"a page is punched out", kib, func(t *testing.T, s *sharing) {
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Resident: span(n), New: span(n)})
				for i := range n {
					s.b[i*page] = byte(i + 1)
				}
				if err := unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page, page); err != nil {
					t.Fatal(err)
				}
				if s.v.Has(s.at(0), n, true) {
					t.Error("a page that is gone is there")
				}
				s.want(t, "the page", s.fault(t, 1), Result{Resident: 1, New: 1})
				if !s.v.Has(s.at(0), n, true) {
					t.Error("the others of the folio are not entered again")
				}
				for i := range n {
					want := byte(i + 1)
					if i == 1 {
						want = 0
					}
					if s.b[i*page] != want {
						t.Errorf("page %d holds %d, want %d", i, s.b[i*page], want)
					}
				}
			}},
			{"a guard page", kib, func(t *testing.T, s *sharing) {
				if err := unix.Madvise(s.b[2*page:3*page], madvGuardInstall); err != nil {
					t.Skip("no guard pages in files (Linux 6.15): ", err)
				}
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Resident: span(n) &^ 4, New: span(n) &^ 4})
				s.want(t, "the guard page", s.fault(t, 2), Result{Err: ErrUnmapped})
				if s.v.Has(s.at(2), 1, true) {
					t.Error("the guard page is entered")
				}
			}},
			{"to be read alone from page 2 on", kib, func(t *testing.T, s *sharing) {
				if err := unix.Mprotect(s.b[2*page:], unix.PROT_READ); err != nil {
					t.Fatal(err)
				}
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Resident: 3, New: 3})
				s.want(t, "page 2", s.fault(t, 2), Result{Kind: Permission, Err: ErrDenied})
				if s.v.Has(s.at(2), 1, true) {
					t.Error("a page that may not be written is entered")
				}
			}},
			{"mapped by something else", kib, func(t *testing.T, s *sharing) {
				if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&s.b[0]), uintptr(n*page), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
					t.Fatal(err)
				}
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Kind: Permission, Err: ErrDenied})
			}},
			{"single pages", 0, func(t *testing.T, s *sharing) {
				s.want(t, "one", s.fault(t, n), Result{Resident: 1, New: 1})
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Resident: span(n), New: span(n)})
			}},
			{"pages are punched out, and not all are needed", kib, func(t *testing.T, s *sharing) {
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Resident: span(n), New: span(n)})
				if err := unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page, 2*page); err != nil {
					t.Fatal(err)
				}
				s.want(t, "one", s.fault(t, 1), Result{Resident: 1, New: 1})
			}},
			{"single pages, and another page-in", 0, func(t *testing.T, s *sharing) {
				other, ok := s.v.Folios(s.at(0), n, true)
				if !ok {
					t.Fatal("not known to come in by folios")
				}
				r := s.PageIn(s.at(0), n, true)
				s.v.Enter(other.VA, other.Pages, span(n))
				if came := s.v.EndFolios(&other); r.Resident != span(n) || r.Err != nil || bits.OnesCount64(r.New)+bits.OnesCount64(came) != n {
					t.Errorf("%+v, and the other has counted pages %#x: want %d in all", r, came, n)
				}
				s.want(t, "the next", s.PageIn(s.at(n), n, true), Result{Resident: span(n), New: span(n)})
			}},
			{"smaller folios", 8, func(t *testing.T, s *sharing) {
				s.want(t, "all", s.PageIn(s.at(0), n, true), Result{Resident: span(n), New: span(n)})
			}},
		} {
			t.Run(fmt.Sprintf("%d/%s", kib, tt.name), func(t *testing.T) {
				foliotest.Set(t, tt.kib)
				tt.do(t, shareFolios(t, n))
			})
		}
	}
}

func (s *sharing) want(t *testing.T, what string, got, want Result) {
	t.Helper()
	if !errors.Is(got.Err, want.Err) {
		t.Errorf("%s: %v, want %v", what, got.Err, want.Err)
	}
	if got.Err = want.Err; got != want {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// A userfaultfd of the program's own keeps the kernel from bringing in folios. The pages come in
// one by one, as the program fills them.
func TestFoliosOfAnotherUserfaultfd(t *testing.T) {
	foliotest.Set(t, 64)
	s := shareFolios(t, 16)
	fd, full, err := uffd.Open(false)
	if err != nil || !full {
		t.Skip("this user may not serve faults of the kernel: ", err)
	}
	defer unix.Close(fd)
	if err := uffd.Intercept(fd, s.va, uint64(len(s.b))); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("a second userfaultfd: %v, want %v", err, unix.EBUSY)
	}
	if err := s.v.Unwatch(); err != nil {
		t.Fatal(err)
	}
	if err := uffd.Intercept(fd, s.va, uint64(len(s.b))); err != nil {
		t.Fatal(err)
	}
	filler, err := uffd.TakeHoles(fd, s.va, uint64(len(s.b)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan int)
	const pages = 16
	go func() {
		served := 0
		defer func() { done <- served }()
		for msg := make([]byte, 32); served < pages; {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); n != 1 && err != unix.EINTR {
				t.Error(err)
				return
			}
			if n, _ := unix.Read(fd, msg); n < len(msg) {
				continue
			}
			at := device.VA(binary.NativeEndian.Uint64(msg[16:])) // struct uffd_msg
			if _, err := filler.Fill(at.Page(), page); err != nil {
				t.Error(err)
				return
			}
			served++
		}
	}()
	r := s.PageIn(s.at(0), pages, true)
	if served := <-done; served != pages || r.Resident != 1<<pages-1 || r.Err != nil {
		t.Errorf("%+v; the program has served %d pages", r, served)
	}
	if err := filler.Close(); err != nil {
		t.Error(err)
	}
}
