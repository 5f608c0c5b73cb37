package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/workload"
)

// isolated is 4 KiB a pause after the last one: pfd sleeps, and the caches have seen
// others.
func (l *Lab) isolated(ctx context.Context, r *Report, p *pins) error {
	return l.with(ctx, 2, func(d *pfd) (err error) {
		var open sessions
		defer open.close(&err)
		s, err := l.open(ctx, d, 0, 1, "gup", "p1")
		if err != nil {
			return err
		}
		open.add(s)
		w, err := newWaker()
		if err != nil {
			return err
		}
		defer w.close()
		small := func(dst workload.State) workload.Transfer {
			return workload.Transfer{Size: smallSize, Src: workload.Present, Dst: dst}
		}
		for _, k := range []struct {
			pause         time.Duration
			parts, rounds int
		}{{time.Millisecond, 16, 20}, {10 * time.Millisecond, 16, 6}, {time.Second, 3, 3}} {
			l.says("4 KiB after %v", k.pause)
			after := func(dst workload.State) *turn {
				t := small(dst)
				t.Pause, t.Parts = k.pause, k.parts
				return arrive(p, s, t, 0)
			}
			wake, present, absent := w.turn(k.pause, k.parts), after(workload.Present), after(workload.Absent)
			busy := transfer(p, s, small(workload.Present))
			if err := takeTurns(ctx, k.rounds, wake, present, absent, busy); err != nil {
				return err
			}
			i := Isolated{
				Pause: k.pause, Wake: wake.microseconds(), Present: present.microseconds(), Absent: absent.microseconds(),
				BackToBack: busy.microseconds(),
			}
			i.Excess = (i.Present - i.Wake) / i.BackToBack
			r.Isolated = append(r.Isolated, i)
		}
		return nil
	})
}

// waker is a thread that sleeps until an eventfd is written, as pfd's does.
type waker struct {
	event, epoll int
	woken        atomic.Uint64
	stop         atomic.Bool
	done         chan struct{}
}

func newWaker() (w *waker, err error) {
	w = &waker{epoll: -1, done: make(chan struct{})}
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("wake-up: eventfd: %w", err)
	}
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, w.event, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET})
	}
	if err != nil {
		_ = unix.Close(w.event) // nothing is in it
		_ = unix.Close(w.epoll)
		return nil, fmt.Errorf("wake-up: epoll: %w", err)
	}
	go w.sleep()
	return w, nil
}

func (w *waker) sleep() {
	runtime.LockOSThread()
	defer close(w.done)
	var ev [1]unix.EpollEvent
	for !w.stop.Load() {
		if n, _ := unix.EpollWait(w.epoll, ev[:], -1); n > 0 {
			w.woken.Add(1)
		}
	}
}

func (w *waker) wake() error {
	if _, err := unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("wake-up: write the eventfd: %w", err)
	}
	return nil
}

func (w *waker) close() {
	w.stop.Store(true)
	if w.wake() != nil {
		return // it sleeps for ever, and ends with the process
	}
	<-w.done
	_ = unix.Close(w.event)
	_ = unix.Close(w.epoll)
}

// turn gives the turn of wake-ups: from the call that wakes to the thread's being seen.
func (w *waker) turn(pause time.Duration, count int) *turn {
	return &turn{do: func() (took []time.Duration, err error) {
		for range count {
			time.Sleep(pause)
			before, start := w.woken.Load(), time.Now()
			if err := w.wake(); err != nil {
				return nil, err
			}
			for w.woken.Load() == before {
			}
			took = append(took, time.Since(start))
		}
		return took, nil
	}}
}
