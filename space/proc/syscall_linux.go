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
	name         string // ends in " (deleted)" if it has no name any more
	inode        uint64
	major, minor uint32
	pageSize     uint64
}

// fileAt returns the file mapped at va; false if the kernel does not report it.
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

// unlimited reports whether a page of f may be missing for another reason than the file's end: a
// huge page, because none may be free, or secret memory, which the kernel pages in only for its
// own process.
func (f *mappedFile) unlimited() bool {
	return f.pageSize > device.PageSize || f.name == "/secretmem (deleted)" // memfd_secret(2)
}

// procmap returns in m the mapping at va or the next one after it. It returns ENOENT if there is
// none, ESRCH if the address space is gone, and ENOTTY on a kernel before 6.11.
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

// preadEntries reads pagemap entries from page number page on and returns how many it read.
func preadEntries(fd int, dst []Entry, page uint64) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(dst))),
		uintptr(len(dst))*unsafe.Sizeof(Entry(0)), uintptr(page*uint64(unsafe.Sizeof(Entry(0)))), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n / unsafe.Sizeof(Entry(0))), 0
}

// move reads (trap SYS_PROCESS_VM_READV) or writes the buffers, total bytes, at va in the address
// space of pid. It cuts them into pieces at multiples of piece bytes: the kernel checks the pages
// of a piece, copies it, and goes on to the next. It uses Syscall and not RawSyscall because the
// process's memory may make it sleep.
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

// poll polls one descriptor without blocking; false if no event is ready or the call failed.
func poll(f *unix.PollFd) bool {
	var none unix.Timespec
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(f)), 1, uintptr(unsafe.Pointer(&none)), 0, 0, 0)
	return errno == 0 && n > 0
}

// ended polls an epoll descriptor (watch) without blocking and reports whether its process has
// ended. The kernel signals the end before it frees the pid. A failed call reports false.
func ended(fd int) bool {
	var ev unix.EpollEvent
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&ev)), 1, 0, 0, 0)
	return errno == 0 && n > 0
}
