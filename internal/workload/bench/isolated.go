package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/workload"
)

// isolated measures transfers of 4 KiB with a pause before each: pfd sleeps, and other
// programs have used the caches.
func (r *run) isolated() error {
	r.usual(workload.Memories...)
	t := r.table("isolated", "4 KiB a pause after the last transfer (gup, p1)", "us", "pause", "present, back to back")
	return r.with(2, func(d *pfd) error {
		p := r.open(d, 0, 1, "gup", "p1")
		var b bare
		defer b.close()
		w, err := newWaker()
		if err != nil {
			return err
		}
		defer w.close()
		for _, k := range []struct {
			pause time.Duration
			parts int
			count int
		}{{time.Millisecond, 16, 320}, {10 * time.Millisecond, 16, 96}, {time.Second, 3, 9}} {
			row, count := k.pause.String(), max(k.count*r.Count/1000, 1)
			q := workload.PerfRun{Size: smallSize, Count: count, Pause: k.pause, Parts: k.parts, Cold: true}
			absent := q
			absent.Dst = 1
			wakes := t.cell(row, "bare wake-up of a thread")
			calls := func(src, dst device.VA, size uint64) (time.Duration, error) {
				time.Sleep(k.pause)
				return w.measure(func() error { return b.transfer(src, dst, size) })
			}
			if err := r.takeTurns(
				&turn{count: count, do: func(add func(*Cell, ...float64)) error {
					return laps(add, wakes, k.parts, 0, func(int) (time.Duration, error) {
						time.Sleep(k.pause)
						return w.measure(nil)
					})
				}},
				b.measure(r, p, q, t.cell(row, "and the bare calls by it"), calls),
				r.transfers(p, q, t.cell(row, "present"), nil),
				r.transfers(p, absent, t.cell(row, "absent"), nil),
				r.transfers(p, workload.PerfRun{Size: smallSize, Count: count}, t.cell(row, "present, back to back"), nil),
			); err != nil {
				return err
			}
			for _, m := range r.kinds(p) {
				t.note("%v, memory %s: the time beyond the wake-up is %.2fx a transfer back to back (goal: at most 1.2x).", k.pause, m,
					(t.median(row, "present", m)-t.Median(row, "bare wake-up of a thread"))/t.median(row, "present, back to back", m))
			}
		}
		return nil
	})
}

// waker is a thread that sleeps until an eventfd is written, as pfd's thread does.
type waker struct {
	event, epoll int
	work         atomic.Pointer[func() error] // of the next wake-up
	result       atomic.Pointer[error]        // of the last wake-up; nil until it is done
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
		_ = unix.Close(w.event)
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
			work := w.work.Swap(nil)
			if work == nil {
				continue // close woke it
			}
			var err error
			if *work != nil {
				err = (*work)()
			}
			w.result.Store(&err)
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
		return // the thread sleeps until the process ends
	}
	<-w.done
	_ = unix.Close(w.event)
	_ = unix.Close(w.epoll)
}

// measure returns the time from the call that wakes the thread until the caller sees that the
// thread has done the work.
func (w *waker) measure(work func() error) (time.Duration, error) {
	w.result.Store(nil)
	w.work.Store(&work)
	start := time.Now()
	if err := w.wake(); err != nil {
		return 0, err
	}
	for {
		if err := w.result.Load(); err != nil {
			return time.Since(start), *err
		}
	}
}
