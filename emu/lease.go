package emu

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dispatch has a call done: inline under a lease, or by a worker of its domain
// where it is known to be long or the domain slow. False: the lease was lost.
func (e *Engine) dispatch(c *call) bool {
	s := c.slot
	switch {
	case s == nil:
		// No process is attached to the slot: nobody's worker would serve it.
		return e.perform(c)
	case c.long:
		if s.slow || !e.helper.give(c) {
			s.pager.submit(e, c)
		}
	case s.slow:
		s.mem.submit(e, c)
	default:
		return e.perform(c)
	}
	return true
}

// perform does a call inline under a lease. The lease is a count, odd within a
// call; the supervisor takes it over by making it even, and then everything that
// the engine owns belongs to the goroutine it starts.
func (e *Engine) perform(c *call) bool {
	if e.parked.Load() {
		select {
		case e.unpark <- struct{}{}:
		default:
		}
	}
	e.current = c
	// The goroutine may go to another thread, but seldom.
	if e.calls == 0 {
		e.thread.Store(int32(unix.Gettid()))
	}
	e.calls++
	watched := c.slot != nil && c.slot.watched > 0
	var before [2]int64
	if watched {
		before = naps()
	}
	held := e.lease.Add(1)
	c.run()
	if !e.lease.CompareAndSwap(held, held+1) {
		e.finish(c)
		return false
	}
	began := e.clock
	e.clock = e.Now()
	if s := c.slot; s != nil && !s.slow {
		if took := time.Duration(e.clock - began); s.charge(took, watched && took > quickCall && naps() != before) {
			e.slowDown(s, "memory accesses hold everybody up")
		}
	}
	e.complete(c)
	return true
}

// overtaken goes on where another goroutine got stuck in call late.
func (e *Engine) overtaken(late *call) {
	if late.node != nil {
		late.node.takeover++
	}
	if late.slot != nil {
		e.slowDown(late.slot, "memory access over its lease")
	}
}

func (e *Engine) slowDown(s *slot, why string) {
	s.pace.slowDown(e.Now())
	log := s.att.Log // the user's own lines: nobody else's are held back for them
	if log == nil {
		log = e.log.With("node", s.node.index)
	}
	log.Info(why+": the domain is served by a worker of its own", "slot", s.index, "after", leaseTime)
}

// supervise looks every few milliseconds whether a call has outlasted its
// lease. It parks when nothing goes on, so that an idle machine uses no CPU.
func (e *Engine) supervise() {
	const period = leaseTime / 4
	tick := time.NewTicker(period)
	defer tick.Stop()
	seen, since, quiet := uint64(0), time.Now(), 0
	for {
		select {
		case <-e.done:
			return
		case <-tick.C:
		}
		v := e.lease.Load()
		if v != seen {
			seen, since, quiet = v, time.Now(), 0
			continue
		}
		if v&1 == 0 {
			if quiet++; quiet < 64 {
				continue
			}
			tick.Stop()
			e.parked.Store(true)
			// A call that began before it saw the flag shows in the count.
			if e.lease.Load() == v {
				select {
				case <-e.done:
					return
				case <-e.unpark:
				}
			}
			e.parked.Store(false)
			tick.Reset(period)
			quiet, since = 0, time.Now()
			continue
		}
		if over := time.Since(since); over < leaseTime || over < longLease && e.runs() {
			continue
		}
		if e.lease.CompareAndSwap(v, v+1) {
			go e.loop(e.current)
		}
	}
}

// longLease is when a call loses its lease though it does not sleep (ours).
const longLease = 10 * leaseTime

// runs tells whether the thread of the call under way runs, or would if it had a
// processor: then it waits for no memory, and the machine is only busy.
func (e *Engine) runs() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", e.thread.Load()))
	if err != nil {
		return false
	}
	// "TID (NAME) STATE ...", with any NAME (proc_pid_stat(5)).
	i := bytes.LastIndexByte(b, ')')
	return i >= 0 && len(b) > i+2 && b[i+2] == 'R'
}

// workerSpin is how long a worker that has nothing to do looks for more before
// it ends: a page-in's next slice comes within microseconds, and to wake a
// goroutine for each costs more than the slice.
const workerSpin = 50 * time.Microsecond

// worker does the calls of one domain one after the other, on a goroutine that
// lives while there are any.
type worker struct {
	mu      sync.Mutex
	more    atomic.Bool // head is not nil: for a look without the lock
	head    *call
	tail    *call
	running bool
}

func (w *worker) submit(e *Engine, c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.next = nil
	if w.tail != nil {
		w.tail.next = c
	} else {
		w.head = c
	}
	w.tail = c
	w.more.Store(true)
	if !w.running {
		w.running = true
		go w.serve(e)
	}
}

// steal takes a call that waits for its worker to wake up, which takes longer
// than the call on a machine whose other processor sleeps: the engine has nothing
// else to do. Nil: there is none.
func (e *Engine) steal() *call {
	if c := e.helper.steal(); c != nil {
		return c
	}
	for _, s := range e.live {
		if s.pager.more.Load() && !s.slow {
			if c := s.pager.take(); c != nil {
				return c
			}
		}
	}
	return nil
}

// take takes the next call, nil where there is none.
func (w *worker) take() *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.head
	if c == nil {
		return nil
	}
	if w.head = c.next; w.head == nil {
		w.tail = nil
		w.more.Store(false)
	}
	c.next = nil
	return c
}

func (w *worker) serve(e *Engine) {
	for {
		for idle := time.Now(); !w.more.Load() && time.Since(idle) < workerSpin; {
		}
		c := w.take()
		if c == nil && w.rest() {
			return
		}
		if c == nil {
			continue
		}
		start := time.Now()
		c.run()
		c.elapsed = max(time.Since(start), 1)
		e.finish(c)
	}
}

// rest ends the worker if there is still nothing to do.
func (w *worker) rest() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = w.head != nil
	return !w.running
}

func (w *worker) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.head == nil && !w.running
}

// wait sleeps until a watched descriptor fires, or for timeout; negative: for
// ever. It is a system call that the scheduler knows of (Syscall, not
// RawSyscall), so that a collection does not wait for it.
func (e *Engine) wait(timeout time.Duration) {
	var ev [8]unix.EpollEvent
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	_, _, _ = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(e.epoll), uintptr(unsafe.Pointer(&ev[0])),
		uintptr(len(ev)), uintptr(unsafe.Pointer(ts)), 0, 0)
	runtime.KeepAlive(ts)
}
