// Package futex is futex(2): threads that sleep until a word of memory has changed. The word
// may be shared between processes.
package futex

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations (linux/futex.h). Not the private ones, which are for the words of one process.
const (
	waitOp = 0
	wakeOp = 1
)

// Wait sleeps while the word has the value v, until Wake or a signal ends that, or timeout
// has passed; a negative one never does. It returns EAGAIN if the word had another value,
// EINTR or ETIMEDOUT for what else ended the sleep, 0 for a Wake, and another error if the
// kernel refuses to sleep.
func Wait(word *uint32, v uint32, timeout time.Duration) unix.Errno {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	// Syscall and not RawSyscall: the scheduler must know that this thread sleeps.
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), waitOp, uintptr(v), uintptr(unsafe.Pointer(ts)), 0, 0)
	runtime.KeepAlive(ts)
	return errno
}

// Wake wakes n threads at most that wait for the word.
func Wake(word *uint32, n int) {
	// It fails only for a word that is not mapped or not aligned.
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), wakeOp, uintptr(n), 0, 0, 0)
}
