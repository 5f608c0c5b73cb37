package hostile

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// Values of linux/userfaultfd.h.
const (
	uffdNew      = 0xaa << 8 // USERFAULTFD_IOC_NEW of /dev/userfaultfd
	uffdioZero   = 3<<30 | 32<<16 | 0xaa<<8 | 0x04
	uffdMessage  = 32
	uffdAddress  = 16
	userfaultDev = 3 // the test passes /dev/userfaultfd as this descriptor
)

// slowPage is how long paging in each page of an attacker's memory takes.
const slowPage = 30 * time.Millisecond

// sleepInUserfaultfd attaches, makes one transfer into memory whose faults the attacker serves
// itself, 30 ms a page, and detaches. It repeats this as a new process, whose memory is not yet
// known to be slow.
func sleepInUserfaultfd(ctx context.Context, o order, did func()) error {
	fd, err := newUserfaultfd()
	if err != nil {
		return err
	}
	go serveSlowly(os.NewFile(uintptr(fd), "userfaultfd"), fd)
	const size = 4096
	src := make([]byte, size)
	cycles(ctx, int(o.Size), did, func(round int64) error {
		slow, err := registered(fd, size)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(slow) }()
		e, err := attachBoth(ctx, o.Attach.Socket, fmt.Sprint("uffd", round))
		if err != nil {
			return err
		}
		defer e.Close()
		remote, err := e.to.Export(slow)
		if err != nil {
			return err
		}
		t, err := e.from.Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
		if err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 3*slowPage)
		defer cancel()
		_ = t.Wait(short) // only the time counts, not the result
		return nil
	})
	return nil
}

// newUserfaultfd creates one that also serves faults of other processes and of the kernel.
func newUserfaultfd() (int, error) {
	flags := unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, userfaultDev, uffdNew, uintptr(flags))
	if errno != 0 {
		return -1, fmt.Errorf("userfaultfd: %w", errno)
	}
	api := [3]uint64{0xaa}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api))); errno != 0 {
		return -1, fmt.Errorf("UFFDIO_API: %w", errno)
	}
	return int(fd), nil
}

// registered returns memory that a userfaultfd serves.
func registered(fd, size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	reg := [4]uint64{uint64(uintptr(unsafe.Pointer(&b[0]))), uint64(size), 1} // missing pages
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdioRegister, uintptr(unsafe.Pointer(&reg))); errno != 0 {
		return nil, fmt.Errorf("UFFDIO_REGISTER: %w", errno)
	}
	return b, nil
}

// serveSlowly serves each fault of a userfaultfd after slowPage.
func serveSlowly(f *os.File, fd int) {
	var m [uffdMessage]byte
	for {
		if _, err := f.Read(m[:]); err != nil {
			time.Sleep(attackPause)
			continue
		}
		at := binary.NativeEndian.Uint64(m[uffdAddress:]) &^ 4095
		time.AfterFunc(slowPage, func() { _ = zeroPages(fd, uintptr(at), 4096) })
	}
}

// zeroPages pages registered memory in.
func zeroPages(fd int, at uintptr, size uint64) error {
	zero := [4]uint64{uint64(at), size}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uffdioZero, uintptr(unsafe.Pointer(&zero))); errno != 0 {
		return fmt.Errorf("UFFDIO_ZEROPAGE: %w", errno)
	}
	return nil
}
