package stream

import (
	"runtime"
	"sync"
	"time"

	"github.com/exanet/pfd/rdma"
)

// waiter is where one goroutine waits for an event of its connection or listener. The stack's lock
// guards parked.
type waiter struct {
	parked bool
	ch     chan struct{}
}

func newWaiter() waiter { return waiter{ch: make(chan struct{}, 1)} }

// signal wakes the goroutine.
func (w *waiter) signal(s *stack) {
	if w.parked {
		w.parked = false
		s.parked--
		w.ch <- struct{}{}
	}
}

// until waits until ready returns true; false: over was closed before. The stack's lock is held
// before and after. advance polls what the goroutine waits for: one goroutine of the process may
// spin, the others leave it to the pump.
func (s *stack) until(w *waiter, over <-chan struct{}, advance func(), ready func() bool) bool {
	if advance(); ready() {
		return true
	}
	if !s.spinning {
		s.spinning = true
		for began := time.Now(); time.Since(began) < rdma.SpinTime && !ready(); advance() {
			s.mu.Unlock()
			runtime.Gosched()
			s.mu.Lock()
		}
		s.spinning = false
	}
	for !ready() {
		w.parked = true
		s.parked++
		s.plan(nil)
		s.mu.Unlock()
		expired := false
		select {
		case <-w.ch:
		case <-over:
			expired = true
		}
		s.mu.Lock()
		if expired {
			if w.parked {
				w.parked = false
				s.parked--
			} else {
				<-w.ch // signaled meanwhile
			}
			return ready()
		}
	}
	return true
}

// deadline is a channel that is closed at a time that can be changed.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{}
}

func newDeadline() deadline { return deadline{over: make(chan struct{})} }

// set sets the time; zero: never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // its function runs: it closes the channel
	}
	d.timer = nil
	closed := passed(d.over)
	switch left := time.Until(t); {
	case !t.IsZero() && left <= 0:
		if !closed {
			close(d.over)
		}
		return
	case closed:
		d.over = make(chan struct{})
	}
	if !t.IsZero() {
		over := d.over
		d.timer = time.AfterFunc(time.Until(t), func() { close(over) })
	}
}

// channel returns the channel.
func (d *deadline) channel() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func passed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
