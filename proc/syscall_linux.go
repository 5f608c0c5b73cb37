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

// mappedFile is the file behind a mapping.
type mappedFile struct {
	name         string // " (deleted)" at its end: under no name
	inode        uint64
	major, minor uint32
	pageSize     uint64
}

// fileAt returns what is mapped at va; false where the kernel does not say.
func fileAt(fd int, va device.VA) (mappedFile, bool) {
	var name [unix.PathMax]byte
	var pin runtime.Pinner
	pin.Pin(&name)
	defer pin.Unpin()
	q := procmapQuery{
		size:     uint64(unsafe.Sizeof(procmapQuery{})),
		addr:     uint64(va),
		nameSize: uint32(len(name)),
		nameAddr: uint64(uintptr(unsafe.Pointer(&name))),
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapIoctl, uintptr(unsafe.Pointer(&q))); errno != 0 {
		return mappedFile{}, false
	}
	return mappedFile{unix.ByteSliceToString(name[:]), q.inode, q.devMajor, q.devMinor, q.pageSize}, true
}

// unlimited reports whether it is memory whose file's end is not why a page is missing:
// huge pages, of which none may be free, and secret memory, which the kernel brings in for
// its process alone.
func (f *mappedFile) unlimited() bool {
	return f.pageSize > device.PageSize || f.name == "/secretmem (deleted)" // memfd_secret(2)
}

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

// move reads (trap SYS_PROCESS_VM_READV) or writes the buffers, total bytes, at
// va of the address space of pid, in pieces cut at multiples of piece bytes: the
// kernel takes the pages of a piece by their rights, copies it, and goes on.
// Syscall and not RawSyscall: it may sleep for as long as the process's memory
// makes it.
func move(pid int, trap uintptr, bufs [][]byte, va device.VA, total, piece int) (int, unix.Errno) {
	var local [MaxBuffers]unix.Iovec
	for i, b := range bufs {
		local[i].Base = unsafe.SliceData(b)
		local[i].SetLen(len(b))
	}
	var remote [MaxBytes/writePiece + 1]unix.RemoteIovec
	pieces := 0
	for at, left := uintptr(va), total; left > 0; pieces++ {
		n := min(left, piece-int(at%uintptr(piece)))
		remote[pieces] = unix.RemoteIovec{Base: at, Len: n}
		at += uintptr(n)
		left -= n
	}
	n, _, errno := unix.Syscall6(trap, uintptr(pid), uintptr(unsafe.Pointer(&local)), uintptr(len(bufs)),
		uintptr(unsafe.Pointer(&remote)), uintptr(pieces), 0)
	runtime.KeepAlive(bufs)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// poll looks at one descriptor, without waiting; false where the kernel did not
// say.
func poll(f *unix.PollFd) bool {
	var none unix.Timespec
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(f)), 1, uintptr(unsafe.Pointer(&none)), 0, 0, 0)
	return errno == 0 && n > 0
}

// ended looks at an epoll descriptor, without waiting: whether what it watches has
// ended. The kernel puts it there before it lets go of the process's number. False
// where it did not say.
func ended(fd int) bool {
	var ev unix.EpollEvent
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&ev)), 1, 0, 0, 0)
	return errno == 0 && n > 0
}
