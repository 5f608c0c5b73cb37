package kernel

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// order is the byte order of the kernel's structures and, on machines with VFIO, of PCI.
var order = binary.NativeEndian

// ioctl makes an ioctl whose argument is a structure. This file contains all unsafe pointers of
// the package.
func ioctl(fd int, request uint, arg []byte) (int, error) {
	return again(func() (uintptr, uintptr, unix.Errno) {
		// The conversion must be in the call itself: otherwise a structure on the stack may
		// move.
		return unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	})
}

// ioctlWord makes an ioctl whose argument is a number.
func ioctlWord(fd int, request uint, arg uintptr) (int, error) {
	return again(func() (uintptr, uintptr, unix.Errno) {
		return unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), arg)
	})
}

// again repeats a call while signals interrupt it.
func again(call func() (r, _ uintptr, errno unix.Errno)) (int, error) {
	for {
		r, _, errno := call()
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return 0, errno
		default:
			return int(r), nil
		}
	}
}

// address returns the address of a mapping, for the kernel.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// closeAll closes descriptors; no written data can be lost.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func open(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
