package emu

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helper does long calls beside the engine, one at a time: a thread of its own
// that sleeps in the kernel, not a goroutine, because a goroutine that is woken
// finds its thread first, and the kernel likes to put a thread that wakes on the
// processor of the one that woke it. There the engine runs, and does not go away:
// the helper is kept from that processor. A call that hangs takes the helper, and
// all other long calls go to the workers of their domains.
type helper struct {
	call   atomic.Pointer[call] // given and not begun
	word   uint32               // futex: 1 while the thread sleeps
	stop   atomic.Bool
	thread atomic.Int32 // 0: it does not run
	done   chan struct{}

	// The engine's own.
	busy bool // a call was given and has not come back
	cpu  int  // that the thread is kept from, -1 none
}

// futexWait and futexWake are operations of futex(2) (linux/futex.h), with
// FUTEX_PRIVATE_FLAG: the word is this process's alone.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

func (h *helper) start(e *Engine) {
	h.done = make(chan struct{})
	h.cpu = -1
	go func() {
		defer close(h.done)
		// Locked for good: the thread has an affinity of its own, and ends here.
		runtime.LockOSThread()
		h.thread.Store(int32(unix.Gettid()))
		h.serve(e)
	}()
}

// end lets the thread end; a call that hangs is left to itself.
func (h *helper) end() {
	h.stop.Store(true)
	h.wake()
}

func (h *helper) serve(e *Engine) {
	for !h.stop.Load() {
		for idle := time.Now(); h.call.Load() == nil && time.Since(idle) < workerSpin; {
		}
		c := h.call.Swap(nil)
		if c == nil {
			h.sleep()
			continue
		}
		start := time.Now()
		c.run()
		c.elapsed = max(time.Since(start), 1)
		e.finish(c)
	}
}

func (h *helper) sleep() {
	atomic.StoreUint32(&h.word, 1)
	if h.call.Load() == nil && !h.stop.Load() {
		// Syscall and not RawSyscall: the scheduler must know that it sleeps.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&h.word)), futexWait, 1, 0, 0, 0)
	}
	atomic.StoreUint32(&h.word, 0)
}

func (h *helper) wake() {
	if atomic.SwapUint32(&h.word, 0) != 0 {
		_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&h.word)), futexWake, 1, 0, 0, 0)
	}
}

// give has the helper do a call; false: it is at another. On the engine
// goroutine, as the following.
func (h *helper) give(c *call) bool {
	if h.busy || h.thread.Load() == 0 {
		return false
	}
	h.busy, c.helped = true, true
	h.avoid()
	h.call.Store(c)
	h.wake()
	return true
}

// steal takes the call back that the helper has not begun; nil: there is none, or
// the engine might hang in it.
func (h *helper) steal() *call {
	c := h.call.Load()
	if c == nil || c.slot.slow || !h.call.CompareAndSwap(c, nil) {
		return nil
	}
	h.busy, c.helped = false, false
	return c
}

// avoid keeps the thread from the engine's processor. Where that is not allowed,
// or there is no other, it stays as it is.
func (h *helper) avoid() {
	cpu := currentCPU()
	if cpu == h.cpu || cpu < 0 {
		return
	}
	h.cpu = cpu
	var others unix.CPUSet
	if unix.SchedGetaffinity(0, &others) != nil { // the engine's: as it is by now
		return
	}
	if others.Clear(cpu); others.Count() > 0 {
		_ = unix.SchedSetaffinity(int(h.thread.Load()), &others)
	}
}

func currentCPU() int {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return -1
	}
	return int(cpu)
}
