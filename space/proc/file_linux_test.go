package proc

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space/proc/proctest"
)

// A file's last page is mapped as a whole; the pages beyond the file's end are not.
func TestInFile(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, device.PageSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	file, anon := c.Map(name, 4), c.Map(proctest.Anon, 2)
	if err := p.InFile(file); errors.Is(err, ErrUnknown) {
		t.Skipf("this user may not look at map_files: %v", err)
	}
	for i, want := range []error{nil, nil, ErrPastEnd, ErrPastEnd} {
		if err := p.InFile(file + device.VA(i)*device.PageSize + 5); !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("page %d: %v, want %v", i, err, want)
		}
	}
	if err := p.InFile(anon); err != nil {
		t.Errorf("memory without a file: %v", err)
	}
	if err := os.Truncate(name, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.InFile(file); !errors.Is(err, ErrPastEnd) {
		t.Errorf("truncated: %v", err)
	}
	c.Unmap(anon, 2)
	if err := p.InFile(anon); !errors.Is(err, ErrUnmapped) {
		t.Errorf("unmapped: %v", err)
	}
	c.Kill()
	if err := p.InFile(file); !errors.Is(err, ErrGone) && !errors.Is(err, ErrUnmapped) {
		t.Errorf("dead: %v", err)
	}
}

// A missing huge page and secret memory are not beyond the end of their file, and a pfd without
// capabilities can tell.
func TestUnlimited(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
	unlimited := func(maps int, va device.VA) bool {
		f, ok := fileAt(maps, va)
		return ok && f.unlimited()
	}
	if unlimited(p.maps, c.Map(proctest.Memfd, 1)) || unlimited(p.maps, c.Map(proctest.Anon, 1)) {
		t.Error("a memfd, or anonymous memory, has no end")
	}
	own, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	mapped := func(t *testing.T, fd, size, flags int) {
		p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			t.Skip("this kernel has no such memory for us: ", err)
		}
		defer func() {
			if err := unix.MunmapPtr(p, uintptr(size)); err != nil {
				t.Error(err)
			}
		}()
		if !unlimited(int(own.Fd()), device.VA(uintptr(p))) {
			t.Error("it counts as a file with an end")
		}
	}
	t.Run("huge pages", func(t *testing.T) {
		mapped(t, -1, 2<<20, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_NORESERVE)
	})
	t.Run("secret memory", func(t *testing.T) {
		fd, _, errno := unix.Syscall(unix.SYS_MEMFD_SECRET, unix.O_CLOEXEC, 0, 0)
		if errno != 0 {
			t.Skip("memfd_secret: ", errno)
		}
		defer unix.Close(int(fd))
		if err := unix.Ftruncate(int(fd), device.PageSize); err != nil {
			t.Fatal(err)
		}
		mapped(t, int(fd), device.PageSize, unix.MAP_SHARED)
	})
}

// Without the capability for map_files InFile finds the file by its name, or among the files that
// the process has open.
func TestInFileWithoutCapability(t *testing.T) {
	c, err := OpenPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !c.query {
		t.Skip("this kernel does not say what is mapped (PROCMAP_QUERY, Linux 6.11)")
	}
	name := filepath.Join(t.TempDir(), "file")
	named, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	memory := func() *os.File {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "test")
	}
	open, closed := memory(), memory()
	defer open.Close()
	var at [3]device.VA
	for i, f := range []*os.File{named, open, closed} {
		if err := f.Truncate(page); err != nil {
			t.Fatal(err)
		}
		b, err := unix.Mmap(int(f.Fd()), 0, 2*page, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(b) }()
		at[i] = device.VA(uintptr(unsafe.Pointer(&b[0])))
	}
	if err := errors.Join(named.Close(), closed.Close()); err != nil {
		t.Fatal(err)
	}

	// Only this thread drops its capabilities; it ends with the goroutine.
	runtime.LockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&h, &none[0]); err != nil {
		t.Fatal(err)
	}
	for i, what := range []string{"a file with a name", "a memfd that is open", "a memfd that is closed"} {
		want := []error{nil, ErrPastEnd}
		if i == 2 {
			want = []error{ErrUnknown, ErrUnknown}
		}
		for k, want := range want {
			if err := c.InFile(at[i] + device.VA(k*page)); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%s, page %d: %v, want %v", what, k, err, want)
			}
		}
	}
}
