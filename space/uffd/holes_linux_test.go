package uffd

import (
	"errors"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// holes maps a memfd and returns the Holes that registered it and the one taken from its
// descriptor, which fills its missing pages.
func holes(t *testing.T, pages int) (b []byte, fd int, own, taken *Holes) {
	t.Helper()
	if !Protects() {
		t.Skip("this kernel has no userfaultfd with write-protect faults (Linux 5.19, on arm64 6.10)")
	}
	own, err := NewHoles()
	if err != nil {
		t.Fatal(err)
	}
	if fd, err = unix.MemfdCreate("holes", unix.MFD_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err = unix.Ftruncate(fd, int64(pages)*device.PageSize); err != nil {
		t.Fatal(err)
	}
	if b, err = unix.Mmap(fd, 0, pages*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	if err := own.Add(device.VA(address(b)), uint64(len(b))); err != nil {
		t.Fatal(err)
	}
	if taken, err = TakeHoles(own.FD(), device.VA(address(b)), uint64(len(b))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(taken.Close(), own.Close(), own.Close()); err != nil {
			t.Error(err)
		}
	})
	return b, fd, own, taken
}

// TestHoles: missing pages are filled and mapped in the process; other pages keep their bytes and
// are reported. The process's own accesses do not block.
func TestHoles(t *testing.T) {
	b, fd, own, taken := holes(t, 16)
	va := device.VA(address(b))
	at := func(page int) device.VA { return va + device.VA(page)<<device.PageShift }
	b[3*device.PageSize] = 7 // with no server
	if n, err := taken.Fill(at(0), 8*device.PageSize); n != 3*device.PageSize || err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EAGAIN) {
		t.Errorf("filled %d bytes, %v: want the three pages before one that is there", n, err)
	}
	if n, err := taken.Fill(at(3), device.PageSize); n != 0 || !errors.Is(err, unix.EEXIST) {
		t.Errorf("a page that is there: %d, %v", n, err)
	}
	if err := own.Close(); err != nil { // the receiver still has it
		t.Error(err)
	}
	if n, err := taken.Fill(at(4), 4*device.PageSize); n != 4*device.PageSize || err != nil {
		t.Errorf("filled %d bytes, %v", n, err)
	}
	if n := there(t, b); n != 8 || b[3*device.PageSize] != 7 || b[0] != 0 {
		t.Errorf("%d pages are there, the first bytes %d and %d", n, b[0], b[3*device.PageSize])
	}
	// In the file, and not in the process's page table.
	if _, err := unix.Pwrite(fd, []byte{9}, 9*device.PageSize); err != nil {
		t.Fatal(err)
	}
	if n, err := taken.Fill(at(9), device.PageSize); n != 0 || !errors.Is(err, unix.EEXIST) || b[9*device.PageSize] != 9 {
		t.Errorf("a page of the file: %d, %v, byte %d", n, err, b[9*device.PageSize])
	}
	// Punched out: missing again.
	if err := unix.Madvise(b[:device.PageSize], unix.MADV_REMOVE); err != nil {
		t.Fatal(err)
	}
	if n, err := taken.Fill(at(0), device.PageSize); n != device.PageSize || err != nil {
		t.Errorf("a page that was punched out: %d, %v", n, err)
	}
	// Remapped: no longer registered.
	mapped := make(chan error)
	go func() {
		_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&b[12*device.PageSize]), 4*device.PageSize, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
		mapped <- err
	}()
	if !taken.AwaitUnmap() {
		t.Fatal("closed")
	}
	select {
	case <-mapped:
		t.Error("the process does not wait")
	default:
	}
	for _, page := range []int{12, 16} {
		if n, err := taken.Fill(at(page), device.PageSize); n != 0 || err == nil {
			t.Errorf("page %d, which is not registered: %d, %v", page, n, err)
		}
	}
	if err := errors.Join(taken.Close(), <-mapped); err != nil {
		t.Error(err)
	}
	if taken.AwaitUnmap() {
		t.Error("closed, and the process unmaps")
	}
	if _, err := taken.Fill(at(10), device.PageSize); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestTakeHolesRefuses(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, fd := range []int{int(f.Fd()), -1} {
		if _, err := TakeHoles(fd, 0, device.PageSize); !errors.Is(err, ErrNotOne) {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

// TestCopies: after Close no unmap blocks, and another userfaultfd may register the memory, even
// if a copy of the descriptor stays open, as in a child.
func TestCopies(t *testing.T) {
	for name, giveUp := range map[string]func(t *testing.T, b []byte, own, taken *Holes){
		"closed": func(t *testing.T, _ []byte, _, taken *Holes) {
			if err := taken.Close(); err != nil {
				t.Error(err)
			}
		},
		"not taken": func(t *testing.T, b []byte, own, _ *Holes) {
			if err := Unregister(own.FD(), device.VA(address(b)), uint64(len(b))); err != nil {
				t.Error(err)
			}
		},
		"during an unmap": func(t *testing.T, b []byte, _, taken *Holes) {
			unmapped := make(chan error)
			go func() { unmapped <- unmapPart(b[4*device.PageSize : 8*device.PageSize]) }()
			if !taken.AwaitUnmap() {
				t.Fatal("closed")
			}
			if err := errors.Join(taken.Close(), <-unmapped); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, _, own, taken := holes(t, 16)
			giveUp(t, b, own, taken)
			for _, part := range [][]byte{b[:4*device.PageSize], b[8*device.PageSize:]} {
				other, err := NewHoles()
				if err == nil {
					err = errors.Join(other.Add(device.VA(address(part)), uint64(len(part))), other.Close())
				}
				if err != nil {
					t.Error("another userfaultfd:", err)
				}
			}
			unmapped := make(chan error, 1)
			go func() { unmapped <- unmapPart(b) }()
			for {
				select {
				case err := <-unmapped:
					if err != nil {
						t.Error(err)
					}
					return
				default:
				}
				if n, err := unix.Poll([]unix.PollFd{{Fd: int32(own.FD()), Events: unix.POLLIN}}, 1); n > 0 && err == nil {
					t.Error("an unmap waits for who reads")
					_ = own.Close()
					return
				}
			}
		})
	}
}

func unmapPart(b []byte) error {
	if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, uintptr(address(b)), uintptr(len(b)), 0); errno != 0 {
		return errno
	}
	return nil
}

func TestWithout(t *testing.T) {
	for _, c := range []struct{ gone, want []span }{
		{nil, []span{{10, 20}}},
		{[]span{{0, 10}, {20, 30}}, []span{{10, 20}}},
		{[]span{{12, 14}, {17, 40}}, []span{{10, 12}, {14, 17}}},
		{[]span{{0, 11}, {5, 12}}, []span{{12, 20}}},
		{[]span{{0, 100}}, nil},
	} {
		list := []span{{10, 20}}
		for _, g := range c.gone {
			list = without(list, g)
		}
		if !slices.Equal(list, c.want) {
			t.Errorf("without %v: %v, want %v", c.gone, list, c.want)
		}
	}
}
