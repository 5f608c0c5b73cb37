package owner

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait sleeps until a descriptor of an epoll fires, or for timeout; a negative timeout means for
// ever. It returns how many have fired. The scheduler knows of the system call (Syscall, not
// RawSyscall), so that garbage collection does not wait for it.
func wait(epoll int, fired []unix.EpollEvent, timeout time.Duration) int {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&fired[0])),
		uintptr(len(fired)), uintptr(unsafe.Pointer(ts)), 0, 0)
	runtime.KeepAlive(ts)
	if errno != 0 {
		return 0 // a signal: the caller checks its work and sleeps again
	}
	return int(n)
}
