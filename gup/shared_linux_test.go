package gup

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
	"github.com/exanet/pfd/space/view"
)

// sharing is memory that this process shares, and a pager for it.
type sharing struct {
	*Pager
	p  *proc.Process
	v  *view.View
	fd int
	b  []byte
	va device.VA
}

// newSharing returns an empty view, and a memfd of size bytes that is sealed as a share's must be.
func newSharing(t *testing.T, size int) *sharing {
	t.Helper()
	v, err := view.New()
	if err != nil {
		t.Skipf("this kernel has no userfaultfd for a view, as Linux 5.14 has: %v", err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &sharing{v: v}
	if s.fd, err = unix.MemfdCreate("shared", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(s.fd) })
	if err := unix.Ftruncate(s.fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	return s
}

// watch registers the shared memory with a userfaultfd of the process, which the view takes.
func (s *sharing) watch(t *testing.T, fill bool) {
	t.Helper()
	h, err := uffd.NewHoles()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	if err := h.Add(s.va, uint64(len(s.b))); err != nil {
		t.Fatal(err)
	}
	if err := s.v.Watch(s.va, h.FD(), fill, func(unmap func()) { unmap() }); err != nil {
		t.Fatal(err)
	}
}

func share(t *testing.T, pages int, filled bool) *sharing {
	t.Helper()
	s := newSharing(t, pages*page)
	var err error
	if s.b, err = unix.Mmap(s.fd, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(s.b) })
	s.va = device.VA(uintptr(unsafe.Pointer(&s.b[0])))
	if err := s.v.Share(s.va, uint64(len(s.b)), s.fd, 0, true); err != nil {
		t.Fatal(err)
	}
	if filled {
		if !uffd.Protects() {
			t.Skip("this kernel has no userfaultfd with write-protect faults (Linux 5.19, on arm64 6.10)")
		}
		s.watch(t, true)
	}
	s.p = open(t, os.Getpid(), os.Getpid())
	s.Pager = NewShared(s.p, s.v)
	return s
}

// TestSharedPageIn has a row for each state of shared memory: the pages that a page-in of its
// first pages makes resident and enters, without changing bytes. It runs with and without the
// userfaultfd that came with the memory, for all pages together and, as a fault does, for the
// first one after a walk.
func TestSharedPageIn(t *testing.T) {
	const pages = 8
	const all = 1<<pages - 1
	write := func(t *testing.T, s *sharing, at int) {
		if _, err := unix.Pwrite(s.fd, []byte{1}, int64(at)*page); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(t *testing.T, s *sharing)
		bytes   int // how many pages have their first byte set to 1
		want    Result
	}{
		{"nobody has touched it", nil, 0, Result{Resident: all, New: all}},
		{"one is there", func(_ *testing.T, s *sharing) { s.b[3*page] = 1 }, 1, Result{Resident: all, New: all &^ 8}},
		{"the first is there", func(_ *testing.T, s *sharing) { s.b[0] = 1 }, 1, Result{Resident: all, New: all &^ 1, There: true}},
		{"all are there", func(_ *testing.T, s *sharing) {
			for i := range pages {
				s.b[i*page] = 1
			}
		}, pages, Result{Resident: all, There: true}},
		{"the file has one", func(t *testing.T, s *sharing) { write(t, s, 2) }, 1, Result{Resident: all, New: all}},
		{"the file has the first", func(t *testing.T, s *sharing) { write(t, s, 0) }, 1, Result{Resident: all, New: all}},
		{"the file has all", func(t *testing.T, s *sharing) {
			for i := range pages {
				write(t, s, i)
			}
		}, pages, Result{Resident: all, New: all}},
		{"a guard page", func(t *testing.T, s *sharing) {
			if err := unix.Madvise(s.b[4*page:5*page], madvGuardInstall); err != nil {
				t.Skip("no guard pages in files (Linux 6.15): ", err)
			}
		}, 0, Result{Resident: 15, New: 15}},
		{"to be read alone from page 4 on", func(t *testing.T, s *sharing) {
			if err := unix.Mprotect(s.b[4*page:], unix.PROT_READ); err != nil {
				t.Fatal(err)
			}
		}, 0, Result{Resident: 15, New: 15}},
		{"mapped by something else", func(t *testing.T, s *sharing) {
			if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&s.b[0]), pages*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
				t.Fatal(err)
			}
		}, 0, Result{Kind: Permission, Err: ErrDenied}},
	} {
		for how, filled := range map[string]bool{"by userfaultfd": true, "by the process's table": false} {
			for _, n := range []int{pages, 1} {
				t.Run(fmt.Sprintf("%s/%s/%d", tt.name, how, n), func(t *testing.T) {
					s := share(t, pages+4, filled)
					if tt.prepare != nil {
						tt.prepare(t, s)
					}
					if n == 1 {
						if _, err := s.p.Walk(s.va, 1, true); err != nil {
							t.Fatal(err)
						}
					}
					want := tt.want
					want.Resident &= 1<<n - 1
					want.New &= 1<<n - 1
					got := s.PageIn(s.va, n, true)
					if got.Resident != want.Resident || got.New != want.New || got.There != want.There || got.Kind != want.Kind || !errors.Is(got.Err, want.Err) {
						t.Errorf("%+v, want %+v", got, want)
					}
					if got := s.v.Enter(s.va, n, want.Resident); got != want.Resident {
						t.Errorf("entered %#x, want %#x", got, want.Resident)
					}
					set := 0
					for i := range pages {
						if tt.want.Err == nil && tt.want.Resident>>i&1 != 0 {
							set += int(s.b[i*page])
						}
					}
					if set != tt.bytes {
						t.Errorf("%d bytes are left of %d", set, tt.bytes)
					}
				})
			}
		}
	}
}
