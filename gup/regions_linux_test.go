package gup

import (
	"bytes"
	"errors"
	"os"
	"structs"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc"
	"github.com/exanet/pfd/space/uffd"
)

const (
	madvGuardInstall = 102 // MADV_GUARD_INSTALL, Linux 6.13
	regionPages      = 8
)

// registered maps memory of this process, calls prepare on it, registers it and returns a pager
// for it.
func registered(t *testing.T, fd, flags int, prepare func(b []byte, uffd int)) (*Regions, *proc.Process, []byte) {
	t.Helper()
	b, err := unix.Mmap(fd, 0, regionPages*page, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	u, _, err := uffd.Open(false)
	if errors.Is(err, uffd.ErrForbidden) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	va := device.VA(uintptr(unsafe.Pointer(&b[0])))
	if err := uffd.Register(u, va, uint64(len(b))); err != nil {
		t.Fatal(err)
	}
	if prepare != nil {
		prepare(b, u)
	}
	ended := make(chan struct{})
	r, err := uffd.Serve(u, va, uint64(len(b)), func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, os.Getpid(), os.Getpid())
	g := NewRegions(p)
	if err := g.Add(r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return g, p, b
}

// poison makes each access to a page raise SIGBUS (UFFDIO_POISON, Linux 6.6).
func poison(b []byte, fd int) error {
	arg := struct {
		_                      structs.HostLayout
		start, len, mode, done uint64
	}{start: uint64(uintptr(unsafe.Pointer(&b[0]))), len: uint64(len(b))}
	const ioctlPoison = 3<<30 | 32<<16 | 0xaa<<8 | 0x08
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlPoison, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		return errno
	}
	return nil
}

// touchable reports whether a page may be read. It tries by a system call, since a fault in a
// goroutine would end the process.
func touchable(t *testing.T, b []byte) bool {
	t.Helper()
	f, err := unix.MemfdCreate("touch", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(f)
	_, err = unix.Write(f, b[:1])
	return err == nil
}

// A page that the process has made inaccessible is neither filled nor made accessible, at the
// start of a range or within it.
func TestRegionsLeaveMarkers(t *testing.T) {
	for name, mark := range map[string]func(b []byte, fd int) error{
		"guard":  func(b []byte, _ int) error { return unix.Madvise(b, madvGuardInstall) },
		"poison": poison,
	} {
		for _, write := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", write", false: ", read"}[write], func(t *testing.T) {
				g, p, b := registered(t, -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, func(b []byte, fd int) {
					if err := mark(b[3*page:4*page], fd); err != nil {
						t.Skip("kernel without such pages: ", err)
					}
				})
				va := device.VA(uintptr(unsafe.Pointer(&b[0])))
				if r := g.PageIn(va, regionPages, write); r.Resident != 7 || r.Err != nil {
					t.Errorf("%+v, want the pages before it", r)
				}
				r := g.PageIn(va+3*page, regionPages-3, write)
				if r.Resident&1 != 0 || r.Err == nil || name == "guard" && !errors.Is(r.Err, ErrUnmapped) {
					t.Errorf("%+v, want none", r)
				}
				var e [1]proc.Entry
				if _, err := p.Pagemap(va+3*page, e[:]); err != nil || e[0].Present() || name == "guard" && !e[0].Guard() {
					t.Errorf("the entry is %#x, %v", uint64(e[0]), err)
				}
				if touchable(t, b[3*page:4*page]) {
					t.Error("the page can be read now")
				}
			})
		}
	}
}

// The unwritten pages of a private mapping of a file keep the file's bytes.
func TestRegionsOfPrivateFile(t *testing.T) {
	for _, write := range []bool{true, false} {
		fd, err := unix.MemfdCreate("private", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		// Pages 6 and 7 are a hole.
		want := bytes.Repeat([]byte{0xa5}, 6*page)
		if _, err := unix.Pwrite(fd, want, 0); err != nil {
			t.Fatal(err)
		}
		want = append(want, make([]byte, 2*page)...)
		if err := unix.Ftruncate(fd, regionPages*page); err != nil {
			t.Fatal(err)
		}
		g, _, b := registered(t, fd, unix.MAP_PRIVATE, nil)
		va := device.VA(uintptr(unsafe.Pointer(&b[0])))
		for i := range device.VA(regionPages) {
			if r := g.PageIn(va+i*page, regionPages-int(i), write); r.Resident&1 == 0 {
				t.Fatalf("page %d, write %v: %+v", i, write, r)
			}
		}
		if !bytes.Equal(b, want) {
			t.Errorf("write %v: %d bytes are 0xa5", write, bytes.Count(b, []byte{0xa5}))
		}
	}
}
