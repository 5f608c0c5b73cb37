// Package futex wraps futex(2): a thread sleeps until a word of memory changes. Processes may
// share the word.
package futex

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations (linux/futex.h). The private ones work within one process only.
const (
	waitOp = 0
	wakeOp = 1
)

// Wait sleeps while the word has the value v, until a Wake, a signal or timeout; a negative
// timeout never expires. It returns 0 after a Wake, EAGAIN if the word had another value, EINTR
// after a signal, ETIMEDOUT, or another error if the kernel refuses to sleep.
func Wait(word *uint32, v uint32, timeout time.Duration) unix.Errno {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	// Syscall, not RawSyscall: the Go scheduler must know that this thread sleeps.
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), waitOp, uintptr(v), uintptr(unsafe.Pointer(ts)), 0, 0)
	runtime.KeepAlive(ts)
	return errno
}

// Wake wakes at most n threads that wait for the word.
func Wake(word *uint32, n int) {
	// It fails only for a word that is not mapped or not aligned.
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), wakeOp, uintptr(n), 0, 0, 0)
}
