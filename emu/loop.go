package emu

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"time"

	"github.com/exanet/pfd/internal/owner"
)

// run is the engine goroutine. It ends when the engine stops, or when a call outlasts its lease: then
// another goroutine already runs run and owns all of the engine's state. late is the call in which
// the previous goroutine is blocked; nil for the first one.
func (e *Engine) run(late *call) {
	e.own()
	if late == nil {
		e.held.Lock()
	} else {
		e.overtaken(late)
		if e.borrowed {
			// The blocked goroutine is a borrower: the engine goroutine sleeps.
			if e.left != nil {
				e.left()
				e.left = nil
			}
			e.repay()
			return
		}
	}
	p, rested := owner.NewPatience(e.cfg.Spin, e.cfg.SpinMax), false
	for {
		busy, ok := e.pass()
		if !ok {
			return
		}
		e.flush()
		if e.stop {
			e.end()
			return
		}
		woke := rested
		rested = false
		if busy {
			p.Busy()
			continue
		}
		now := e.Now()
		// After a wake-up that brought no work the engine does not poll for more.
		// The kernel may put a process that was woken on this processor.
		asked := e.nudge(now) > 0 || e.struck
		e.struck = false
		sleep := p.Idle(now, asked, e.yield) || woke && !asked || e.frugal(now)
		if sleep || now-p.Since() >= showAfter {
			e.showTrace(now)
		}
		if sleep {
			e.sleep()
			p.Slept(e.Now() - now)
			rested = true
		}
	}
}

// yield offers the processor to other threads, and returns for how many ns they had it.
func (e *Engine) yield() int64 {
	start := e.Now()
	owner.Yield()
	e.own()
	return e.Now() - start
}

func (e *Engine) end() {
	for s := range e.attached {
		e.Detach(s.node.index, s.index)
	}
	e.loop.End()
	e.held.Unlock()
}

// sleep blocks until a process rings, something is posted, or a machine's deadline.
func (e *Engine) sleep() {
	e.loop.Doze()
	if !e.worth() {
		now := e.Now()
		timeout := e.loop.Timeout(now)
		if next := e.nudge(now); next > 0 {
			timeout = sooner(timeout, next-now)
		}
		for _, n := range e.nodes {
			if n.due < int64(1)<<62 {
				timeout = sooner(timeout, n.due-e.clock.now)
			}
		}
		timeout = e.tracer.untilShown(timeout)
		e.until = math.MaxInt64
		if timeout >= 0 {
			e.until = e.clock.now + int64(timeout)
		}
		e.held.Unlock()
		e.loop.Wait(timeout)
		e.held.Lock()
		e.own()
		e.clock.slept(e.Now(), e.until)
	}
	e.loop.Rouse(e.clock.seen)
}

// sooner limits a time-out by a time in ns. A negative time-out is infinite.
func sooner(timeout time.Duration, left int64) time.Duration {
	if d := time.Duration(max(left, 0)); timeout < 0 || d < timeout {
		return d
	}
	return timeout
}

// Lend runs f on the caller's goroutine in place of the engine's, and then does the work that results
// from it. It saves a server of registers for another process the way to the engine goroutine and
// back, which costs more than the rest of an access. It blocks while another goroutine owns the
// engine. It returns false if the engine has ended and f was not run. f must not call Lend.
func (e *Engine) Lend(f func()) bool {
	e.held.Lock()
	select {
	case <-e.loop.Done():
		e.held.Unlock()
		return false
	default:
	}
	e.borrow(nil)
	f()
	e.repay()
	return true
}

// borrow makes the caller, which has locked held, the owner in place of the engine goroutine, which sleeps.
// left is called if the caller is found blocked; nil: nothing is.
func (e *Engine) borrow(left func()) {
	e.borrowed, e.left = true, left
	e.own()
	e.clock.slept(e.Now(), e.until)
}

// visit does the work that there is on the caller's goroutine if the engine sleeps, and otherwise sees to it
// that the engine does it. It does not wait for the engine, but a process's memory may block it, as it
// may the engine goroutine: when that is found, left is called on another goroutine, and visit returns
// false in the end.
func (e *Engine) visit(left func()) bool {
	if !e.started.Load() || !e.held.TryLock() {
		e.loop.Wake()
		return true
	}
	select {
	case <-e.loop.Done():
		e.held.Unlock()
		return true
	default:
	}
	e.borrow(left)
	return e.repay()
}

// flush sees to it that the frames leave that were sent to other hosts.
func (e *Engine) flush() {
	if e.sent {
		e.sent, e.linked = false, e.clock.seen
		e.cfg.Carrier.Flush()
		e.own() // the runtime may have moved the goroutine
	}
}

// The engine does not poll for linkedTime after the last frame from or to another host on a machine with
// fewer than spinProcessors. The processes at both ends, both engines and the links' goroutines need
// processors: the engine would take one from what it waits for. Values are defined by this project.
const (
	linkedTime     = int64(time.Millisecond)
	spinProcessors = 4
)

// frugal reports whether the engine should sleep at once when it has no work.
func (e *Engine) frugal(now int64) bool {
	return e.linked > 0 && now-e.linked < linkedTime && runtime.NumCPU() < spinProcessors
}

// repay does the work that there is, the most of it if there is much, and returns the engine. If a call outlasts its lease meanwhile,
// the engine has another owner, which repays: then repay returns false.
func (e *Engine) repay() bool {
	busy := true
	for n := 0; busy && n < mostPasses; n++ {
		var ok bool
		if busy, ok = e.pass(); !ok {
			return false
		}
		e.flush()
	}
	e.showTrace(math.MaxInt64 / 2)
	e.borrowed = false
	// The engine goroutine sleeps until the deadline that was the next one when it fell asleep.
	wake := busy || e.stop || e.nudge(e.Now()) > 0
	for _, n := range e.nodes {
		wake = wake || n.due < e.until
	}
	if wake {
		e.until = 0 // it is woken once
		e.loop.Wake()
	}
	e.held.Unlock()
	return true
}

// mostPasses is how many passes a borrower makes at most. Defined by this project.
const mostPasses = 8

// supervise checks the current call every few milliseconds. A call that sleeps is charged to its slot;
// one that outlasts its lease is left behind. It parks when there are no calls, so an idle machine
// uses no CPU.
func (e *Engine) supervise() {
	seen, since, quiet := uint64(0), time.Now(), 0
	for e.watchdog.ring() == nil {
		select {
		case <-e.loop.Done():
			return
		default:
		}
		e.noted.Store(false)
		v := e.lease.Load()
		if v != seen {
			seen, since, quiet = v, time.Now(), 0
		}
		if v&1 == 0 {
			if quiet++; quiet < 2 {
				continue
			}
			quiet = 0
			e.watchdog.set(0, 0)
			e.parked.Swap(true) // before the lease is loaded again
			select {
			case <-e.loop.Done():
				return
			default:
			}
			// The count shows a call that began before it could see the flag.
			if e.lease.Load() != v && e.parked.CompareAndSwap(true, false) {
				e.watchdog.set(lookEvery, lookEvery)
			}
			continue
		}
		asleep := e.asleepNow()
		if asleep {
			e.asleepIn.Store(v)
		}
		if over := time.Since(since); over >= longLease || over >= leaseTime && asleep {
			if e.lease.CompareAndSwap(v, v+1) {
				e.current.asleep = asleep
				go e.run(e.current)
			}
		}
	}
}

// asleepNow reports whether the engine's thread sleeps. A thread that runs, or would if it had a
// processor, does not wait for memory: the machine is only busy. The same is true if the goroutine is
// ready and Go's scheduler has no turn for it: its thread then waits in futex(2), where memory lets no
// thread wait.
func (e *Engine) asleepNow() bool {
	thread := fmt.Sprintf("/proc/self/task/%d/", e.thread.Load())
	b, err := os.ReadFile(thread + "stat")
	if err != nil {
		return true
	}
	// "TID (NAME) STATE ..."; NAME may contain any character (proc_pid_stat(5)).
	if i := bytes.LastIndexByte(b, ')'); i >= 0 && len(b) > i+2 && b[i+2] == 'R' {
		return false
	}
	where, _ := os.ReadFile(thread + "wchan") // "0" if the kernel does not tell (proc_pid_wchan(5))
	return !bytes.HasPrefix(where, []byte("futex_"))
}
