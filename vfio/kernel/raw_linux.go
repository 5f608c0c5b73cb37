package kernel

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// order is that of the kernel's structures and, on the machines that Linux's VFIO
// knows, of PCI.
var order = binary.NativeEndian

// ioctl makes an ioctl whose argument is a structure. This file holds the
// package's unsafe pointers.
func ioctl(fd int, request uint, arg []byte) (int, error) {
	return again(func() (uintptr, uintptr, unix.Errno) {
		// Made a number in the call itself: a structure on the stack moves with it else.
		return unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	})
}

// ioctlWord makes an ioctl whose argument is a number.
func ioctlWord(fd int, request uint, arg uintptr) (int, error) {
	return again(func() (uintptr, uintptr, unix.Errno) {
		return unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), arg)
	})
}

// again makes a call until no signal interrupts it.
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

// address gives where a mapping is, for the kernel.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// closeAll closes descriptors; nothing of ours is in them.
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
