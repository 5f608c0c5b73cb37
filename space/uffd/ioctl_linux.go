package uffd

import (
	"structs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Structures and numbers of include/uapi/linux/userfaultfd.h. The package's unsafe pointers are
// all in this file.
type (
	apiArg struct {
		_                     structs.HostLayout
		api, features, ioctls uint64
	}
	rangeArg struct {
		_          structs.HostLayout
		start, len uint64
	}
	registerArg struct {
		_                   structs.HostLayout
		start, len          uint64
		mode, ioctlsOfRange uint64
	}
	copyArg struct {
		_             structs.HostLayout
		dst, src, len uint64
		mode          uint64
		copied        int64 // out: bytes, or -errno
	}
	zeroArg struct {
		_                structs.HostLayout
		start, len, mode uint64
		zeroed           int64 // out: bytes, or -errno
	}
	continueArg struct {
		_                structs.HostLayout
		start, len, mode uint64
		mapped           int64 // out: bytes, or -errno
	}
)

const (
	uffdAPI      = 0xaa // UFFD_API, and the ioctls' type
	iocReadWrite = 3 << 30
	iocRead      = 2 << 30

	ioctlAPI      = iocReadWrite | unsafe.Sizeof(apiArg{})<<16 | uffdAPI<<8 | 0x3f
	ioctlRegister = iocReadWrite | unsafe.Sizeof(registerArg{})<<16 | uffdAPI<<8 // number 0x00
	// ioctlUnregister is UFFDIO_UNREGISTER.
	ioctlUnregister = iocRead | unsafe.Sizeof(rangeArg{})<<16 | uffdAPI<<8 | 0x01
	ioctlWake       = iocRead | unsafe.Sizeof(rangeArg{})<<16 | uffdAPI<<8 | 0x02
	ioctlCopy       = iocReadWrite | unsafe.Sizeof(copyArg{})<<16 | uffdAPI<<8 | 0x03
	ioctlZero       = iocReadWrite | unsafe.Sizeof(zeroArg{})<<16 | uffdAPI<<8 | 0x04
	ioctlContinue   = iocReadWrite | unsafe.Sizeof(continueArg{})<<16 | uffdAPI<<8 | 0x07
	// ioctlNew is USERFAULTFD_IOC_NEW of /dev/userfaultfd.
	ioctlNew = uffdAPI << 8 // number 0x00

	userModeOnly   = 1      // UFFD_USER_MODE_ONLY
	modeMissing    = 1 << 0 // UFFDIO_REGISTER_MODE_MISSING
	modeProtected  = 1 << 1 // UFFDIO_REGISTER_MODE_WP
	modeMinor      = 1 << 2 // UFFDIO_REGISTER_MODE_MINOR
	eventPagefault = 0x12   // UFFD_EVENT_PAGEFAULT
	eventRemove    = 0x15   // UFFD_EVENT_REMOVE
	eventUnmap     = 0x16   // UFFD_EVENT_UNMAP
	featureProtect = 1 << 0 // UFFD_FEATURE_PAGEFAULT_FLAG_WP
	featureRemove  = 1 << 3 // UFFD_FEATURE_EVENT_REMOVE
	featureUnmap   = 1 << 6 // UFFD_FEATURE_EVENT_UNMAP
	// featureSigbus and featureMinorShmem are UFFD_FEATURE_SIGBUS and _MINOR_SHMEM.
	featureSigbus     = 1 << 7
	featureMinorShmem = 1 << 10
	rangeZeropage     = 1 << 4 // 1 << _UFFDIO_ZEROPAGE, in the ioctls of a range

	// struct uffd_msg: the event, then flags (at 8) and address for a page fault, start and end
	// for an unmap.
	msgSize    = 32
	msgAddress = 16
	msgStart   = 8
	msgEnd     = 16
)

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

func handshake(fd int, features uint64) error {
	_, err := featuresOf(fd, features)
	return err
}

// featuresOf asks for features and returns those that the kernel has.
func featuresOf(fd int, asked uint64) (uint64, error) {
	a := apiArg{api: uffdAPI, features: asked}
	err := ioctl(fd, ioctlAPI, unsafe.Pointer(&a))
	return a.features, err
}

// register returns the ioctls that may be used on the range.
func register(fd int, va, size, mode uint64) (ioctls uint64, err error) {
	a := registerArg{start: va, len: size, mode: mode}
	err = ioctl(fd, ioctlRegister, unsafe.Pointer(&a))
	return a.ioctlsOfRange, err
}

// unregister ends what register began, for every copy of the descriptor.
func unregister(fd int, va, size uint64) error {
	return ioctl(fd, ioctlUnregister, unsafe.Pointer(&rangeArg{start: va, len: size}))
}

// registerOwn makes all faults of this process in a mapping of a memfd raise a signal.
func registerOwn(fd int, b []byte) error {
	_, err := register(fd, address(b), uint64(len(b)), modeMissing|modeMinor)
	return err
}

// enter returns how many bytes it entered before the first page that could not be entered.
func enter(fd int, b []byte) (int, error) {
	a := continueArg{start: address(b), len: uint64(len(b))}
	err := ioctl(fd, ioctlContinue, unsafe.Pointer(&a))
	return int(max(a.mapped, 0)), err
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func wake(fd int, va, size uint64) error {
	return ioctl(fd, ioctlWake, unsafe.Pointer(&rangeArg{start: va, len: size}))
}

// copyZeros returns how many bytes it filled before the first page that could not be filled.
func copyZeros(fd int, va uint64, from []byte) (int, error) {
	a := copyArg{dst: va, src: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(from)))), len: uint64(len(from))}
	err := ioctl(fd, ioctlCopy, unsafe.Pointer(&a))
	return int(max(a.copied, 0)), err
}

func zero(fd int, va, size uint64) (int, error) {
	a := zeroArg{start: va, len: size}
	err := ioctl(fd, ioctlZero, unsafe.Pointer(&a))
	return int(max(a.zeroed, 0)), err
}

func open(flags int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, uintptr(flags), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func openDevice(flags int) (int, error) {
	dev, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dev)
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dev), ioctlNew, uintptr(flags))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
