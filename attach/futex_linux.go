package attach

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/futex"
)

// WaitEvent sleeps while the event word is old, at most timeout. Before it the caller reads old,
// counts itself with AddWaiters(1) and checks its condition again. WaitEvent returns nil whatever
// ended the sleep; an error means that the kernel refuses to sleep.
func (p *Port) WaitEvent(old uint32, timeout time.Duration) error {
	if timeout <= 0 {
		return nil
	}
	if errno := p.waitWord(portEvent, old, timeout); errno != 0 {
		return fmt.Errorf("wait on the attachment's event word: %w", errno)
	}
	return nil
}

// WaitServed is for pfd: it sleeps while the word of SetServed is old, at most timeout. The
// process may end any sleep early, and if the kernel refuses to sleep, WaitServed returns at once:
// the caller bounds its calls.
func (p *Pages) WaitServed(old uint32, timeout time.Duration) {
	_ = p.waitWord(WakeServed, old, timeout)
}

// waitWord returns why the kernel refused to sleep, or 0.
func (w *words) waitWord(word, old uint32, timeout time.Duration) unix.Errno {
	errno := futex.Wait(w.w32(word), old, timeout)
	runtime.KeepAlive(w)
	if errors.Is(errno, unix.EAGAIN) || errors.Is(errno, unix.EINTR) || errors.Is(errno, unix.ETIMEDOUT) {
		return 0
	}
	return errno
}

// WakeSelf changes the event word and wakes this process's waiters, to end a wait for a reason of
// the process's own.
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
