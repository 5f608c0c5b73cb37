package memport

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2) (linux/futex.h) on words that processes share.
const (
	futexWaitOp = 0
	futexWakeOp = 1
)

// futexWait sleeps while a word has a value.
func futexWait(word *uint32, v uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(v), 0, 0, 0)
}

// futexWake wakes one thread that waits.
func futexWake(word *uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, 1, 0, 0, 0)
}
