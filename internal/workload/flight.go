package workload

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/rdma"
)

// transfer is a transfer in flight: an *rdma.Transfer.
type transfer interface {
	Poll() rdma.Status
	Err() error // the reason of a failure
	Wait(ctx context.Context) error
	Abort() error
}

// flight makes transfers, one at a time in each of its slots. All transfers of this package
// are made by it or by await.
type flight struct {
	slots int
	sleep bool // wait for the transfers slot by slot instead of polling all of them
	// next reports whether a slot makes another transfer. No latency includes its time.
	next func(slot int) bool
	// begin starts the transfer. The latency includes this call.
	begin func(slot int) (transfer, error)
	// ended receives the result of a transfer. If it returns an error, the flight ends.
	ended func(slot int, start time.Time, took time.Duration, err error) error
}

// run makes the transfers. It returns the error of ctx or of ended, after it has aborted the
// transfers in flight.
func (f *flight) run(ctx context.Context) (err error) {
	open := make([]struct {
		transfer
		start time.Time
		over  bool // the slot makes no more transfers
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
	since, idle, left := time.Now(), f.slots, f.slots // left is the number of slots that are not over
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
		if look || looks == 0 { // looks is 0 if a transfer has just ended
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// await polls a transfer until it ends. It returns err, the error of the call that started the
// transfer, if that is not nil.
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

// warmUp makes transfers one after the other for d, at least one, to wake pfd.
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

// pollsBetweenLooks is the number of polls after which the initiator checks its context and
// yields its processor.
const pollsBetweenLooks = 64

// napAfter is the polling time after which the initiator sleeps instead of yielding.
const napAfter = 2 * time.Millisecond

// offer yields the processor if transfers have been polled since then for as long as
// rdma.Transfer.Wait would poll. pfd may need this processor to page in for a slow transfer.
// sched_yield does not let pfd run if this thread is a real-time one or in another session,
// so after napAfter offer sleeps for a small part of the time that has passed.
func offer(since time.Time) {
	switch waited := time.Since(since); {
	case waited >= napAfter:
		time.Sleep(min(waited/64, time.Millisecond))
	case waited >= rdma.SpinTime:
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
