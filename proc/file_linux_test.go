package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc/proctest"
)

// A file's last page is there as a whole; what is mapped behind it is not.
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

// Huge pages that are not there and secret memory miss their pages for another reason
// than their file's end, and a pfd without capabilities knows.
func TestUnlimited(t *testing.T) {
	c := proctest.Start(t)
	p := openChild(t, c, true)
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
