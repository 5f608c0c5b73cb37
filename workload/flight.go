package workload

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// transfer is one transfer underway: an *rdma.Transfer.
type transfer interface {
	Poll() rdma.Status
	Err() error // why it has failed
	Wait(ctx context.Context) error
	Abort() error
}

// flight makes transfers, one at a time in each of its slots. Whatever this package
// measures or checks, its transfers are made here, or by await.
type flight struct {
	slots int
	sleep bool // the transfers are waited for, slot by slot; else all of them are polled
	// next reports whether a slot makes another transfer. Its own time is nobody's.
	next func(slot int) bool
	// begin starts the transfer. Its latency begins before this call.
	begin func(slot int) (transfer, error)
	// ended takes how a transfer went. An error ends the flight.
	ended func(slot int, start time.Time, took time.Duration, err error) error
}

// run makes the transfers. Where it returns an error, which is ctx's or that of ended, it
// has aborted those that are in flight.
func (f *flight) run(ctx context.Context) (err error) {
	open := make([]struct {
		transfer
		start time.Time
		over  bool // the slot makes no more
	}, f.slots)
	defer func() {
		for i := range open {
			if err != nil && open[i].transfer != nil {
				if e := open[i].Abort(); e != nil {
					err = fmt.Errorf("%w; abort: %w", err, e)
				}
			}
		}
	}()
	since, idle, left := time.Now(), f.slots, f.slots // left: slots that are not over
	for looks := 0; left > 0; looks++ {
		for i := 0; i < len(open) && idle > 0; i++ {
			u := &open[i]
			if u.transfer != nil || u.over {
				continue
			}
			idle--
			if !f.next(i) {
				u.over = true
				left--
				continue
			}
			u.start = time.Now()
			t, err := f.begin(i)
			if err == nil {
				u.transfer = t
				continue
			}
			idle++
			if err := f.ended(i, u.start, time.Since(u.start), err); err != nil {
				return err
			}
		}
		for i := range open {
			u := &open[i]
			if u.transfer == nil {
				continue
			}
			var err error
			if f.sleep {
				if err = u.Wait(ctx); ctx.Err() != nil && !u.Poll().Final() {
					return err
				}
			} else if !u.Poll().Final() {
				continue
			} else {
				err = u.Err()
			}
			took := time.Since(u.start)
			u.transfer = nil
			idle++
			since, looks = u.start.Add(took), 0
			if err := f.ended(i, u.start, took, err); err != nil {
				return err
			}
		}
		look := looks%pollsBetweenLooks == pollsBetweenLooks-1
		if look {
			offer(since)
		}
		if look || looks == 0 { // looks is 0 where a transfer has just ended
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// await polls a transfer until it is over. An err of the call that began it is returned.
func await(ctx context.Context, t transfer, err error) error {
	for since := time.Now(); err == nil; offer(since) {
		for range pollsBetweenLooks {
			if t.Poll().Final() {
				return t.Err()
			}
		}
		err = ctx.Err()
	}
	return err
}

// warmUp makes transfers one after the other for a time, one at least: they wake pfd up.
func warmUp(ctx context.Context, d time.Duration, begin func() (transfer, error)) error {
	for start := time.Now(); ; {
		t, err := begin()
		if err := await(ctx, t, err); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
		if time.Since(start) >= d {
			return nil
		}
	}
}

// pollsBetweenLooks is how often transfers are polled before the initiator looks whether
// it should give up, or offer its processor.
const pollsBetweenLooks = 64

// napAfter is for how long a polling initiator offers its processor before it sleeps.
const napAfter = 2 * time.Millisecond

// offer lets others run where a transfer has been polled since then for as long as
// rdma.Transfer.Wait would. A transfer that is not over soon has pfd page in on another
// processor, which may be this one. sched_yield does not give it to pfd where this thread is
// a real-time one or of another session, so what takes longer is polled with sleeps between,
// each of a small part of the time that has passed.
func offer(since time.Time) {
	switch waited := time.Since(since); {
	case waited >= napAfter:
		time.Sleep(min(waited/64, time.Millisecond))
	case waited >= rdma.SpinTime:
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
