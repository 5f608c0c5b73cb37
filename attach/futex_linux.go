package attach

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/seam"
)

// Operations of futex(2) (linux/futex.h). Not the private ones: the word is
// shared between processes.
const (
	futexWait = 0
	futexWake = 1
)

// WaitEvent sleeps until the event word is not old any more, at most timeout.
// The caller has counted itself with AddWaiters(1) and looked once more at what
// it waits for after reading old. It returns nil whatever ended the sleep; an
// error means that the kernel refuses to sleep.
func (p *Pages) WaitEvent(old uint32, timeout time.Duration) error {
	if timeout <= 0 {
		return nil
	}
	ts := unix.NsecToTimespec(int64(timeout))
	// Syscall and not RawSyscall: the scheduler must know that this thread sleeps.
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p.w32(WakeEvent))),
		futexWait, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
	runtime.KeepAlive(p)
	if errno == 0 || errors.Is(errno, unix.EAGAIN) || errors.Is(errno, unix.EINTR) || errors.Is(errno, unix.ETIMEDOUT) {
		return nil
	}
	return fmt.Errorf("waiting on the attachment's event word: %w", errno)
}

// WakeSelf changes the event word and wakes the waiters of the own process: for
// a wait that must end for a reason of the process's own.
func (p *Pages) WakeSelf() {
	p.add32(WakeEvent, 1)
	p.wake()
}

func (p *Pages) wake() {
	if seam.Fail(seam.AttachFutex) != 0 {
		return
	}
	// Nothing can be done about an error: the word is mapped and aligned.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p.w32(WakeEvent))),
		futexWake, MaxWake, 0, 0, 0)
	runtime.KeepAlive(p)
}
