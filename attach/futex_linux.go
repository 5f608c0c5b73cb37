package attach

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
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
func (p *Port) WaitEvent(old uint32, timeout time.Duration) error {
	if timeout <= 0 {
		return nil
	}
	if errno := p.waitWord(portEvent, old, timeout); errno != 0 {
		return fmt.Errorf("waiting on the attachment's event word: %w", errno)
	}
	return nil
}

// WaitServed is pfd's: it sleeps until SetServed has changed the word from old,
// at most timeout. The process may end any sleep early, and a kernel that does
// not let pfd sleep ends it at once: the caller bounds how often it calls.
func (p *Pages) WaitServed(old uint32, timeout time.Duration) {
	_ = p.waitWord(WakeServed, old, timeout)
}

// waitWord gives why the kernel refused to sleep, 0 whatever else ended it.
func (w *words) waitWord(word, old uint32, timeout time.Duration) unix.Errno {
	ts := unix.NsecToTimespec(int64(timeout))
	// Syscall and not RawSyscall: the scheduler must know that this thread sleeps.
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w.w32(word))),
		futexWait, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
	runtime.KeepAlive(w)
	if errno == 0 || errors.Is(errno, unix.EAGAIN) || errors.Is(errno, unix.EINTR) || errors.Is(errno, unix.ETIMEDOUT) {
		return 0
	}
	return errno
}

// WakeSelf changes the event word and wakes the waiters of the own process: for
// a wait that must end for a reason of the process's own.
func (p *Port) WakeSelf() {
	p.add32(portEvent, 1)
	p.wake()
}

func (p *Port) wake() {
	p.wakeWord(portEvent, MaxWake)
}

func (w *words) wakeWord(word uint32, threads uintptr) {
	// Nothing can be done about an error: the word is mapped and aligned.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w.w32(word))),
		futexWake, threads, 0, 0, 0)
	runtime.KeepAlive(w)
}
