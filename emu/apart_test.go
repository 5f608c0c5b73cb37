package emu

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space"
	"github.com/exanet/pfd/space/memport"
	"github.com/exanet/pfd/space/proc"
	"golang.org/x/sys/unix"
)

// noMemory is memory that cannot be accessed.
type noMemory struct{}

func (noMemory) Walk(device.VA, int, bool) (proc.Walk, error) { return proc.Walk{}, proc.ErrGone }
func (noMemory) ReadV([][]byte, device.VA) (int, error)       { return 0, proc.ErrGone }
func (noMemory) WriteV([][]byte, device.VA) (int, error)      { return 0, proc.ErrGone }

// job is a page-in of the driver.
type job struct {
	space.Op
	done chan struct{}
}

// jobs is memory whose page-ins call functions.
type jobs struct {
	space.Prompt
	runs sync.Map
}

func (*jobs) Start(*space.Op, int64, bool) space.Step { return space.Run }

func (s *jobs) Run(op *space.Op) {
	if run, ok := s.runs.Load(op); ok {
		run.(func())()
	}
}

func (j *job) wait(t *testing.T) {
	t.Helper()
	select {
	case <-j.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("a call does not come back")
	}
}

// live is a running engine of one node.
type live struct {
	*Engine
	t      *testing.T
	memory []*attach.Memory
	jobs   jobs
}

func newLive(t *testing.T) *live {
	t.Helper()
	e, err := New(Config{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	l := &live{Engine: e, t: t}
	t.Cleanup(func() {
		cancel()
		<-ended
		for _, m := range l.memory {
			_ = m.Close()
		}
	})
	return l
}

// on runs f on the engine goroutine.
func (l *live) on(f func()) {
	l.t.Helper()
	ok := make(chan struct{})
	l.loop.Post(func() { f(); close(ok) })
	select {
	case <-ok:
	case <-time.After(2 * time.Minute):
		l.t.Fatal("the engine does not answer")
	}
}

// attach attaches a process of a user to a slot.
func (l *live) attach(slot int, uid uint32) {
	l.t.Helper()
	m, err := attach.NewMemory()
	if err != nil {
		l.t.Fatal(err)
	}
	l.memory = append(l.memory, m)
	l.on(func() {
		if err := l.Attach(0, slot, &Attachment{Pages: m.Pages, Wake: m.WakeFD(), Space: &l.jobs, UID: uid}); err != nil {
			l.t.Error(err)
		}
	})
}

// do makes a call of a slot.
func (l *live) do(slot int, long bool, run func()) *job {
	l.t.Helper()
	j := &job{done: make(chan struct{})}
	j.Op = space.Op{Kind: space.PageIn, Pages: 1, Done: func() { close(j.done) }}
	if run != nil {
		l.jobs.runs.Store(&j.Op, run)
	}
	l.on(func() { l.Space(0).PageIn(slot, &j.Op, long) })
	return j
}

// Long calls that hang delay no other call of their own slot or of others, long or not.
func TestLongCallsThatHang(t *testing.T) {
	l := newLive(t)
	l.attach(0, 1)
	l.attach(1, 2)
	release := make(chan struct{})
	var hung []*job
	for range 8 {
		var begun atomic.Bool
		hung = append(hung, l.do(0, true, func() { begun.Store(true); <-release }))
		for !begun.Load() {
			time.Sleep(50 * time.Microsecond)
		}
		for slot := range 2 {
			for _, long := range []bool{true, false} {
				l.do(slot, long, nil).wait(t)
			}
		}
	}
	close(release)
	for _, j := range hung {
		j.wait(t)
	}
	for range 20 {
		l.do(0, true, nil).wait(t)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		l.apart.mu.Lock()
		idle, asleep := l.apart.idle, l.apart.asleep
		l.apart.mu.Unlock()
		if idle == asleep && asleep <= spareThreads {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d threads stay, %d of them asleep, want %d at most", idle, asleep, spareThreads)
		}
	}
}

// A thread excludes the engine's processor from its affinity, within what the engine may use now: an
// administrator may have confined it (taskset, cpusets).
func TestKeepOff(t *testing.T) {
	runtime.LockOSThread() // for good: the thread has an affinity of its own
	affinity := func() (set unix.CPUSet) {
		t.Helper()
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		return set
	}
	allowed := affinity()
	if allowed.Count() < 2 {
		t.Skip("one processor: there is nowhere to go")
	}
	tid := make(chan int)
	stop := make(chan struct{})
	go func() {
		runtime.LockOSThread() // as above
		tid <- unix.Gettid()
		<-stop
	}()
	defer close(stop)
	engine := <-tid
	for cpu := range 1024 {
		if !allowed.IsSet(cpu) {
			continue
		}
		keepOff(cpu, engine)
		want := allowed
		want.Clear(cpu)
		if affinity() != want {
			t.Errorf("kept off processor %d: %v", cpu, affinity())
		}
	}
	keepOff(-1, engine)
	for cpu := range 1024 {
		if !allowed.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		for _, th := range []int{0, engine} {
			if err := unix.SchedSetaffinity(th, &one); err != nil {
				t.Fatal(err)
			}
		}
		keepOff(cpu, engine)
		if set := affinity(); set != one {
			t.Errorf("the engine is confined to processor %d, and the thread goes elsewhere: %v", cpu, set)
		}
	}
}

// The engine takes back calls that no thread has begun, but none of a slow slot: it could hang in it.
func TestTakeBack(t *testing.T) {
	e := &Engine{}
	p := &e.apart
	slow, quick := &call{slot: &slot{sleeper: sleeper{slowUntil: 1}}}, &call{slot: &slot{}}
	p.idle = 2 // threads that poll for calls
	p.make(slow)
	p.make(quick)
	if p.takeBack(e.slow) != quick || p.takeBack(e.slow) != nil {
		t.Error("not the quick slot's call alone is taken back")
	}
	e.clock.seen = 1
	if p.takeBack(e.slow) != slow || p.takeBack(e.slow) != nil {
		t.Error("a slot that is slow no more: its call is not taken back, once")
	}
}

// A detached slot publishes nothing more in its port, because its session unmaps the port's memory.
func TestDetachAbandonsThePort(t *testing.T) {
	l := newLive(t)
	port, socket, err := memport.New()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	m, err := attach.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	l.memory = append(l.memory, m)
	var r memport.Request
	r.AskPageIn(0x7000, 1, true)
	l.on(func() {
		if err := l.Attach(0, 3, &Attachment{Pages: m.Pages, Wake: m.WakeFD(), Space: space.NewHelper(port)}); err != nil {
			t.Error(err)
			return
		}
		l.Detach(0, 3)
		if ok, ended := port.Submit(&r, l.Now()); !ok || !ended || !errors.Is(r.PageIn.Err, proc.ErrGone) {
			t.Errorf("submitted %v, ended %v, %v, want it ended with ErrGone", ok, ended, r.PageIn.Err)
		}
	})
	if err := port.Close(); err != nil {
		t.Error(err)
	}
}
