package kernel

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// order is that of the kernel's structures and, on the machines that Linux's VFIO
// knows, of PCI.
var order = binary.NativeEndian

// ioctl makes an ioctl whose argument is a structure. This file holds the
// package's unsafe pointers.
func ioctl(fd int, request uint, arg []byte) (int, error) {
	return ioctlWord(fd, request, uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
}

// ioctlWord makes an ioctl whose argument is a number.
func ioctlWord(fd int, request uint, arg uintptr) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), arg)
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

var errFault = errors.New("its registers do not answer")

// load makes one load of size bytes, 1, 2, 4 or 8, at an aligned offset of a
// mapping.
func load(b []byte, off uint64, size int) (v uint64, err error) {
	defer faults(&err)()
	p := unsafe.Pointer(&b[off])
	switch size {
	case 8:
		return atomic.LoadUint64((*uint64)(p)), nil
	case 4:
		return uint64(atomic.LoadUint32((*uint32)(p))), nil
	case 2:
		return uint64(*(*uint16)(p)), nil
	}
	return uint64(*(*uint8)(p)), nil
}

// plain says that a store without sync/atomic follows the stores before it (Intel
// SDM 3A, 10.2.2). There the atomic one is an XCHG, which reads the register, too, and
// waits for that.
const plain = runtime.GOARCH == "amd64"

// store makes one store.
func store(b []byte, off uint64, size int, v uint64) (err error) {
	defer faults(&err)()
	p := unsafe.Pointer(&b[off])
	switch {
	case size == 8 && plain:
		*(*uint64)(p) = v
	case size == 8:
		atomic.StoreUint64((*uint64)(p), v)
	case size == 4 && plain:
		*(*uint32)(p) = uint32(v)
	case size == 4:
		atomic.StoreUint32((*uint32)(p), uint32(v))
	case size == 2:
		*(*uint16)(p) = uint16(v)
	default:
		*(*uint8)(p) = uint8(v)
	}
	return nil
}

// faults makes an error of a SIGBUS: the kernel takes the registers of a device
// away that is removed or reset.
func faults(err *error) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			*err = errFault
		}
	}
}

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
