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

// apart makes the calls that the engine does not make itself: long page-ins, all calls of a slow
// slot, and those that ask the driver of a node in another process. Each call in progress has a
// thread, so a call that hangs delays no other. A slot has at most as many of them as its PLDMA has
// accesses in flight (16) and the driver has page-ins in progress (10).
//
// They are threads rather than goroutines because of where the kernel runs them. It tends to put a
// thread that wakes up on the processor of its waker. The engine runs there and does not yield it. So
// a thread that sleeps excludes that processor from its affinity.
type apart struct {
	owner *atomic.Int32 // the engine's thread
	ended func(*call)   // is called with each call that has been made

	queue  uint32       // number of calls; futex: threads sleep while it is 0
	engine atomic.Int32 // processor on which the engine was last seen

	mu     sync.Mutex
	calls  []*call // not begun
	idle   int     // threads without a call
	asleep int     // of these
	closed bool
}

// Values below are defined by this project.
const (
	// apartSpin is how long an idle thread polls for a call before it sleeps: the next slice of a
	// page-in follows within microseconds.
	apartSpin = 50 * time.Microsecond
	// spareThreads is how many threads sleep; others end. A slot has two page-ins at a time.
	spareThreads = 2
)

// make hands a call to a thread.
func (p *apart) make(c *call) {
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
		go p.serve()
	} else if wake {
		p.wake(1)
	}
}

// takeBack takes a call that no thread has begun, for an engine that has no other work: waking a
// thread takes longer than most calls do. It leaves calls in which the engine might hang, and
// returns nil if there is no other.
func (p *apart) takeBack(slow func(*slot) bool) *call {
	if atomic.LoadUint32(&p.queue) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.calls {
		if c.slot != nil && c.step != space.Apart && !slow(c.slot) {
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

// end makes the threads end. A call that hangs is abandoned.
func (p *apart) end() {
	p.mu.Lock()
	p.closed = true
	atomic.StoreUint32(&p.queue, 1) // keeps a thread from going to sleep
	p.mu.Unlock()
	p.wake(spareThreads)
}

// serve is the body of a thread.
func (p *apart) serve() {
	runtime.LockOSThread() // it has an affinity of its own
	off := int32(-1)       // the processor that it excludes
	for {
		for began := time.Now(); atomic.LoadUint32(&p.queue) == 0 && time.Since(began) < apartSpin; {
		}
		if c := p.next(); c != nil {
			c.run()
			p.mu.Lock()
			p.idle++
			p.mu.Unlock()
			p.ended(c)
			continue
		}
		if !p.rest() {
			// The thread returns to the runtime and stays in the budget. It ends if its affinity
			// cannot be restored.
			if off < 0 || everywhere(int(p.owner.Load())) {
				runtime.UnlockOSThread()
			}
			return
		}
		if cpu := p.engine.Load(); cpu != off {
			off = cpu
			keepOff(int(cpu), int(p.owner.Load()))
		}
		p.sleep()
	}
}

// next takes a call; nil if there is none.
func (p *apart) next() *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.calls) == 0 {
		return nil
	}
	p.idle--
	return p.remove(0)
}

// rest reports whether the thread is to sleep rather than to end.
func (p *apart) rest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.asleep == spareThreads && len(p.calls) == 0 {
		p.idle--
		return false
	}
	p.asleep++
	return true
}

// sleep blocks until there is a call.
func (p *apart) sleep() {
	_ = futex.Wait(&p.queue, 0, -1)
	p.mu.Lock()
	p.asleep--
	p.mu.Unlock()
}

func (p *apart) wake(threads int) { futex.Wake(&p.queue, threads) }

// keepOff excludes a processor from the calling thread's affinity, within what a thread of the engine
// may use now: an administrator may have confined it. If no other processor is left, or the kernel
// refuses, the affinity stays as it is. Without it a write of 1 MiB into absent shared memory takes
// 1.2 times as long on two processors (policy pa; medians of 12 runs in turns: 440 and 546 us, 437
// and 524).
func keepOff(cpu, thread int) {
	var others unix.CPUSet
	if cpu < 0 || unix.SchedGetaffinity(thread, &others) != nil {
		return
	}
	if others.Clear(cpu); others.Count() > 0 {
		_ = unix.SchedSetaffinity(0, &others)
	}
}

// everywhere sets the calling thread's affinity to that of a thread of the engine, and reports whether
// it succeeded.
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
