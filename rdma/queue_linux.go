package rdma

import (
	"context"
	"fmt"
	"iter"
)

// Queue collects transfers as they become final: a completion queue. A transfer
// goes into the one that its request names. It may be used by any goroutine, and each
// transfer is given out once.
type Queue struct {
	ep *Endpoint
	// The endpoint's lock guards them.
	open int         // started and not given out
	done []*Transfer // final and not given out, the first to become so first
}

// NewQueue makes a completion queue for transfers of e.
func (e *Endpoint) NewQueue() *Queue { return &Queue{ep: e} }

// check tells whether a request of e may name q.
func (q *Queue) check(e *Endpoint) error {
	if q != nil && q.ep != e {
		return fmt.Errorf("%w: the queue is another endpoint's: use NewQueue of this one", ErrRequest)
	}
	return nil
}

// start counts a transfer that will come. The endpoint's lock is held.
func (q *Queue) start() {
	if q != nil {
		q.open++
	}
}

// Poll gives the next transfer that is final, or nil. It does not wait.
func (q *Queue) Poll() *Transfer {
	t, _ := q.next()
	return t
}

// next gives the next transfer, or nil, and whether there is one to wait for.
func (q *Queue) next() (t *Transfer, more bool) {
	e := q.ep
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(q.done) == 0 && q.open > 0 {
		if e.rings.some.Load() {
			e.ringLocked()
		}
		e.harvestLocked()
		e.takeMailLocked()
		e.harvestReadsLocked()
	}
	if len(q.done) == 0 {
		return nil, q.open > 0
	}
	t, q.done[0] = q.done[0], nil
	q.done = q.done[1:]
	q.open--
	return t, true
}

// Finished gives the queue's transfers in the order in which they become final, each
// with its Err, and ends when none is left under way. The body may start others. Where
// ctx ends first it gives nil and ctx's error, and the transfers go on. As Wait, it
// spins and then sleeps.
func (q *Queue) Finished(ctx context.Context) iter.Seq2[*Transfer, error] {
	return func(yield func(*Transfer, error) bool) {
		for {
			var t *Transfer
			more := true
			check := func() bool {
				t, more = q.next()
				return t != nil || !more
			}
			if !spin(check) {
				// The end of the attachment makes every transfer final.
				if err := q.ep.waitUntil(ctx, sleepCap, sleepCap, check); err != nil {
					yield(nil, fmt.Errorf("waiting for a transfer of the queue: %w", err))
					return
				}
			}
			if t == nil || !yield(t, t.Err()) {
				return
			}
		}
	}
}
