package attach

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/futex"
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

// waitWord returns why the kernel refused to sleep, 0 if something else ended the sleep.
func (w *words) waitWord(word, old uint32, timeout time.Duration) unix.Errno {
	errno := futex.Wait(w.w32(word), old, timeout)
	runtime.KeepAlive(w)
	if errors.Is(errno, unix.EAGAIN) || errors.Is(errno, unix.EINTR) || errors.Is(errno, unix.ETIMEDOUT) {
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

func (w *words) wakeWord(word uint32, threads int) {
	futex.Wake(w.w32(word), threads)
	runtime.KeepAlive(w)
}
