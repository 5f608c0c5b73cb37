package owner

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait sleeps until a descriptor of an epoll fires, or for timeout; a negative one is for
// ever. It is a system call that the scheduler knows of (Syscall, not RawSyscall), so that
// a collection of garbage does not wait for it. It returns how many have fired.
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
		return 0 // a signal: the caller looks around and sleeps again
	}
	return int(n)
}
