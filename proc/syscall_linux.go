package proc

import (
	"runtime"
	"structs"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// procmapQuery is struct procmap_query of include/uapi/linux/fs.h (6.11).
type procmapQuery struct {
	_           structs.HostLayout
	size        uint64 // of this struct
	flags       uint64 // in
	addr        uint64 // in
	start, end  uint64 // out
	vmaFlags    uint64 // out
	pageSize    uint64 // out
	offset      uint64 // out
	inode       uint64 // out
	devMajor    uint32 // out
	devMinor    uint32 // out
	nameSize    uint32 // in, out
	buildIDSize uint32 // in, out
	nameAddr    uint64 // in
	buildIDAddr uint64 // in
}

// Numbers of include/uapi/linux/fs.h (6.11).
const (
	// PROCMAP_QUERY is _IOWR('f', 17, struct procmap_query).
	iocReadWrite = 3
	procmapIoctl = iocReadWrite<<30 | unsafe.Sizeof(procmapQuery{})<<16 | 'f'<<8 | 17

	procmapReadable   = 0x01
	procmapWritable   = 0x02
	procmapExecutable = 0x04
	procmapShared     = 0x08
	procmapNext       = 0x10 // PROCMAP_QUERY_COVERING_OR_NEXT_VMA
)

// procmap asks the kernel for the mapping at va or the next one after it.
// ENOENT: there is none; ESRCH: the address space is gone; ENOTTY: a kernel
// before 6.11.
func procmap(fd int, va device.VA, m *Mapping) unix.Errno {
	q := procmapQuery{
		size:  uint64(unsafe.Sizeof(procmapQuery{})),
		flags: procmapNext,
		addr:  uint64(va),
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapIoctl, uintptr(unsafe.Pointer(&q)))
	if errno != 0 {
		return errno
	}
	*m = Mapping{
		Start:  device.VA(q.start),
		End:    device.VA(q.end),
		Read:   q.vmaFlags&procmapReadable != 0,
		Write:  q.vmaFlags&procmapWritable != 0,
		Exec:   q.vmaFlags&procmapExecutable != 0,
		Shared: q.vmaFlags&procmapShared != 0,
		File:   q.inode != 0,
	}
	if m.File {
		m.Offset = q.offset
	}
	return 0
}

// preadEntries reads pagemap entries from page number page on and gives how
// many it got.
func preadEntries(fd int, dst []Entry, page uint64) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(dst))),
		uintptr(len(dst))*unsafe.Sizeof(Entry(0)), uintptr(page*uint64(unsafe.Sizeof(Entry(0)))), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n / unsafe.Sizeof(Entry(0))), 0
}

// move reads (trap SYS_PREAD64 and SYS_PREADV) or writes the buffers at va
// through the mem descriptor: by the plain call for one buffer, else by the
// vector call. Syscall and not RawSyscall: it may sleep for as long as the
// process's memory makes it.
func move(fd int, plain, vector uintptr, bufs [][]byte, va device.VA) (int, unix.Errno) {
	if len(bufs) == 1 {
		b := bufs[0]
		n, _, errno := unix.Syscall6(plain, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), uintptr(va), 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(n), 0
	}
	var iov [MaxBuffers]unix.Iovec
	for i, b := range bufs {
		iov[i].Base = unsafe.SliceData(b)
		iov[i].SetLen(len(b))
	}
	// The offset is one register on 64-bit machines; the upper half is for
	// 32-bit ones, which have no place here.
	n, _, errno := unix.Syscall6(vector, uintptr(fd), uintptr(unsafe.Pointer(&iov)), uintptr(len(bufs)),
		uintptr(va), 0, 0)
	runtime.KeepAlive(bufs)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}
