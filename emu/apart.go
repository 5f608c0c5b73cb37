package emu

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/futex"
	"github.com/exanet/pfd/space"
)

// apart makes the calls that the engine does not make itself: long page-ins, and
// every call of a slow slot, and those that ask the driver of a node outside. Each call under way has a thread, so that one that
// hangs holds up no other. A slot has no more of them than its PLDMA has accesses
// in flight (16) and the driver page-ins under way (10).
//
// They are threads and not goroutines, because a goroutine that is woken finds its
// thread first, and the kernel likes to put a thread that wakes on the processor
// of the one that woke it. There the engine runs, and does not go away: a thread
// that sleeps keeps off that processor.
type apart struct {
	queue  uint32       // number of calls; futex: threads sleep while it is 0
	engine atomic.Int32 // processor that the engine was last seen on

	mu     sync.Mutex
	calls  []*call // not begun
	idle   int     // threads without a call
	asleep int     // of these
	ended  bool
}

const (
	// apartSpin is how long a thread that has nothing to do looks for a call before
	// it sleeps (ours): a page-in's next slice comes within microseconds.
	apartSpin = 50 * time.Microsecond
	// spareThreads is how many sleep; others end. A slot's page-ins are two at a
	// time (ours).
	spareThreads = 2
)

// make has a call made by another thread.
func (p *apart) make(e *Engine, c *call) {
	p.mu.Lock()
	p.calls = append(p.calls, c)
	n := len(p.calls)
	atomic.StoreUint32(&p.queue, uint32(n))
	start, wake := n > p.idle, n > p.idle-p.asleep
	if start {
		p.idle++
	}
	p.mu.Unlock()
	if start || wake {
		p.engine.Store(currentCPU())
	}
	if start {
		go p.serve(e)
	} else if wake {
		p.wake(1)
	}
}

// takeBack takes a call that no thread has begun, for the engine to make: it has
// nothing else to do, and a thread wakes more slowly than most calls take. Nil:
// there is none, or the engine might hang in it.
func (p *apart) takeBack(e *Engine) *call {
	if atomic.LoadUint32(&p.queue) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.calls {
		if c.slot != nil && c.step != space.Apart && !e.slow(c.slot) {
			return p.remove(i)
		}
	}
	return nil
}

func (p *apart) remove(i int) *call {
	c := p.calls[i]
	p.calls = slices.Delete(p.calls, i, i+1)
	atomic.StoreUint32(&p.queue, uint32(len(p.calls)))
	return c
}

// end lets the threads end; a call that hangs is left to itself.
func (p *apart) end() {
	p.mu.Lock()
	p.ended = true
	atomic.StoreUint32(&p.queue, 1) // who is about to sleep does not
	p.mu.Unlock()
	p.wake(spareThreads)
}

// serve is a thread.
func (p *apart) serve(e *Engine) {
	runtime.LockOSThread() // it has an affinity of its own
	off := int32(-1)       // the processor that it keeps off
	for {
		for began := time.Now(); atomic.LoadUint32(&p.queue) == 0 && time.Since(began) < apartSpin; {
		}
		if c := p.next(); c != nil {
			c.run()
			p.mu.Lock()
			p.idle++
			p.mu.Unlock()
			e.loop.Send(c)
			continue
		}
		if !p.rest() {
			// The runtime has the thread back, of which the budget knows; one whose
			// affinity stays ends here.
			if off < 0 || everywhere(int(e.thread.Load())) {
				runtime.UnlockOSThread()
			}
			return
		}
		if cpu := p.engine.Load(); cpu != off {
			off = cpu
			keepOff(int(cpu), int(e.thread.Load()))
		}
		p.sleep()
	}
}

// next takes a call, nil where there is none.
func (p *apart) next() *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.calls) == 0 {
		return nil
	}
	p.idle--
	return p.remove(0)
}

// rest tells whether the thread is to sleep; else it is to end.
func (p *apart) rest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.asleep == spareThreads && len(p.calls) == 0 {
		p.idle--
		return false
	}
	p.asleep++
	return true
}

// sleep sleeps until there is a call.
func (p *apart) sleep() {
	_ = futex.Wait(&p.queue, 0, -1)
	p.mu.Lock()
	p.asleep--
	p.mu.Unlock()
}

func (p *apart) wake(threads int) { futex.Wake(&p.queue, threads) }

// keepOff keeps the calling thread off a processor, within what a thread of the
// engine may use by now: an administrator may have confined it. Where there is no
// other, or that is not allowed, it stays as it is.
func keepOff(cpu, thread int) {
	var others unix.CPUSet
	if cpu < 0 || unix.SchedGetaffinity(thread, &others) != nil {
		return
	}
	if others.Clear(cpu); others.Count() > 0 {
		_ = unix.SchedSetaffinity(0, &others)
	}
}

// everywhere lets the calling thread run wherever a thread of the engine may, and reports
// whether it does.
func everywhere(thread int) bool {
	var all unix.CPUSet
	return unix.SchedGetaffinity(thread, &all) == nil && unix.SchedSetaffinity(0, &all) == nil
}

func currentCPU() int32 {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return -1
	}
	return int32(cpu)
}
