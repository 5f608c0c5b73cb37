package uffd

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// holes makes a mapping of a memfd whose missing pages the second one fills: what the process
// has, and what who was given its descriptor has.
func holes(t *testing.T, pages int) (b []byte, fd int, own, taken *Holes) {
	t.Helper()
	if !Protects() {
		t.Skip("this kernel gives no userfaultfd with write-protect faults: Linux 5.19 does, on arm64 6.10")
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

// TestHoles: missing pages are filled and mapped by the process, others keep their bytes and
// are told; the process's own touches wait for nobody.
func TestHoles(t *testing.T) {
	b, fd, own, taken := holes(t, 16)
	va := device.VA(address(b))
	at := func(page int) device.VA { return va + device.VA(page)<<device.PageShift }
	b[3*device.PageSize] = 7 // with nobody who serves
	if n, err := taken.Fill(at(0), 8*device.PageSize); n != 3*device.PageSize || err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EAGAIN) {
		t.Errorf("filled %d bytes, %v: want the three pages before one that is there", n, err)
	}
	if n, err := taken.Fill(at(3), device.PageSize); n != 0 || !errors.Is(err, unix.EEXIST) {
		t.Errorf("a page that is there: %d, %v", n, err)
	}
	if err := own.Close(); err != nil { // who was given it has it still
		t.Error(err)
	}
	if n, err := taken.Fill(at(4), 4*device.PageSize); n != 4*device.PageSize || err != nil {
		t.Errorf("filled %d bytes, %v", n, err)
	}
	if n := there(t, b); n != 8 || b[3*device.PageSize] != 7 || b[0] != 0 {
		t.Errorf("%d pages are there, the first bytes %d and %d", n, b[0], b[3*device.PageSize])
	}
	// In the file, and not in the process's table.
	if _, err := unix.Pwrite(fd, []byte{9}, 9*device.PageSize); err != nil {
		t.Fatal(err)
	}
	if n, err := taken.Fill(at(9), device.PageSize); n != 0 || !errors.Is(err, unix.EEXIST) || b[9*device.PageSize] != 9 {
		t.Errorf("a page of the file: %d, %v, byte %d", n, err, b[9*device.PageSize])
	}
	// Punched out: missing anew.
	if err := unix.Madvise(b[:device.PageSize], unix.MADV_REMOVE); err != nil {
		t.Fatal(err)
	}
	if n, err := taken.Fill(at(0), device.PageSize); n != device.PageSize || err != nil {
		t.Errorf("a page that was punched out: %d, %v", n, err)
	}
	// Mapped anew: no more of it.
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
