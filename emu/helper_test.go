package emu

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/proc"
	"golang.org/x/sys/unix"
)

// noMemory is memory that nobody reaches.
type noMemory struct{}

func (noMemory) Walk(device.VA, int, bool) (proc.Walk, error) { return proc.Walk{}, proc.ErrGone }
func (noMemory) ReadV([][]byte, device.VA) (int, error)       { return 0, proc.ErrGone }
func (noMemory) WriteV([][]byte, device.VA) (int, error)      { return 0, proc.ErrGone }

// job is a long call of the driver.
type job struct {
	run    func()
	thread atomic.Int32
	done   chan struct{}
}

func newJob(run func()) *job { return &job{run: run, done: make(chan struct{})} }

func (j *job) Run() {
	j.thread.Store(int32(unix.Gettid()))
	if j.run != nil {
		j.run()
	}
}

func (j *job) Done() { close(j.done) }

func (j *job) wait(t *testing.T) {
	t.Helper()
	select {
	case <-j.done:
	case <-time.After(20 * time.Second):
		t.Fatal("a long call does not come back")
	}
}

// A long call that hangs takes the helper; other domains' are done all the same,
// and the helper serves again once the call is over.
func TestHelperThatHangs(t *testing.T) {
	e, err := New(Config{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	on := func(f func()) {
		t.Helper()
		ok := make(chan struct{})
		e.post(func() { f(); close(ok) })
		select {
		case <-ok:
		case <-time.After(20 * time.Second):
			t.Fatal("the engine does not answer")
		}
	}
	for slot := range 2 {
		m, err := attach.NewMemory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		on(func() {
			if err := e.Attach(0, slot, &Attachment{Pages: m.Pages, Wake: m.WakeFD(), Memory: noMemory{}}); err != nil {
				t.Error(err)
			}
		})
	}
	helper := func() (busy bool, thread int32) {
		on(func() { busy, thread = e.helper.busy, e.helper.thread.Load() })
		return busy, thread
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, thread := helper(); thread != 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the helper does not start")
		}
	}

	// give has the helper do a call. The engine takes back what the helper has not
	// begun, unless it has something else to do; where the helper's thread gets no
	// processor in time it is tried again.
	give := func(run func() func()) *job {
		t.Helper()
		for range 100 {
			var begun atomic.Bool
			do := run()
			j := newJob(func() { begun.Store(true); do() })
			other := newJob(func() {
				for start := time.Now(); !begun.Load() && time.Since(start) < leaseTime/2; {
					time.Sleep(50 * time.Microsecond)
				}
			})
			on(func() {
				e.nodes[0].bus.Do(0, j, true)
				e.nodes[0].bus.Do(1, other, false)
			})
			other.wait(t)
			for !begun.Load() {
				time.Sleep(50 * time.Microsecond)
			}
			if _, thread := helper(); j.thread.Load() == thread {
				return j
			}
		}
		t.Fatal("the helper never has a call")
		return nil
	}
	var release chan struct{}
	hung := give(func() func() {
		if release != nil {
			close(release) // of one that hung the engine
		}
		release = make(chan struct{})
		c := release
		return func() { <-c }
	})
	if busy, _ := helper(); !busy {
		t.Error("the helper hangs and is not busy")
	}
	for range 20 {
		j := newJob(nil)
		on(func() { e.nodes[0].bus.Do(1, j, true) })
		j.wait(t)
		if _, thread := helper(); j.thread.Load() == thread {
			t.Fatal("the helper did a call while it hung in another")
		}
	}
	close(release)
	hung.wait(t)
	if busy, _ := helper(); busy {
		t.Error("the helper's call is over and it is still busy")
	}
	again := give(func() func() { return func() {} })
	again.wait(t)
}

// The helper's thread is kept from the engine's processor, within what the engine
// may use by now: an administrator may have confined them (taskset, cpusets).
func TestHelperAvoidsTheEngine(t *testing.T) {
	runtime.LockOSThread() // for good: the thread has an affinity of its own
	affinity := func(thread int) (set unix.CPUSet) {
		t.Helper()
		if err := unix.SchedGetaffinity(thread, &set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	allowed := affinity(0)
	if allowed.Count() < 2 {
		t.Skip("one processor: there is nowhere to go")
	}
	h := helper{cpu: -1}
	tid := make(chan int32)
	stop := make(chan struct{})
	go func() {
		// Locked for good: the thread ends with the goroutine.
		runtime.LockOSThread()
		tid <- int32(unix.Gettid())
		<-stop
	}()
	defer close(stop)
	thread := int(<-tid)
	h.thread.Store(int32(thread))
	h.avoid()
	if set := affinity(thread); h.cpu < 0 || set.IsSet(h.cpu) || set.Count() != allowed.Count()-1 {
		t.Errorf("kept from processor %d: it has %d of %d", h.cpu, set.Count(), allowed.Count())
	}
	for cpu := range 1024 {
		if !allowed.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		for _, th := range []int{0, thread} {
			if err := unix.SchedSetaffinity(th, &one); err != nil {
				t.Fatal(err)
			}
		}
		h.avoid()
		if set := affinity(thread); set != one {
			t.Errorf("confined to processor %d, the helper goes elsewhere: %v", cpu, set)
		}
	}
}

// A call of a domain that has become slow since is not taken back: the engine would
// hang in it.
func TestHelperKeepsSlowCalls(t *testing.T) {
	h := helper{cpu: -1}
	h.thread.Store(int32(unix.Gettid()))
	c := &call{slot: &slot{}}
	if !h.give(c) || h.give(c) {
		t.Fatal("not given, or given twice")
	}
	c.slot.slow = true
	if h.steal() != nil {
		t.Error("a slow domain's call is taken back")
	}
	c.slot.slow = false
	if h.steal() != c || h.busy || c.helped || h.steal() != nil {
		t.Error("a quick domain's call is not taken back, once")
	}
}
