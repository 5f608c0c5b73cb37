package rdma

import (
	"context"
	"fmt"
	"iter"
)

// Queue is a completion queue: it collects the transfers whose requests name it as they become
// final, and returns each once. It is safe for concurrent use.
type Queue struct {
	ep *Endpoint
	// The endpoint's lock guards them.
	open int         // started and not returned
	done []*Transfer // final and not returned, in the order in which they became final
}

// NewQueue returns a completion queue for transfers of e.
func (e *Endpoint) NewQueue() *Queue { return &Queue{ep: e} }

// check returns an error unless a request of e may name q.
func (q *Queue) check(e *Endpoint) error {
	if q != nil && q.ep != e {
		return fmt.Errorf("%w: the queue is another endpoint's: use NewQueue of this one", ErrRequest)
	}
	return nil
}

// start counts a transfer that was started. The endpoint's lock is held.
func (q *Queue) start() {
	if q != nil {
		q.open++
	}
}

// Poll returns the next final transfer, or nil. It does not wait.
func (q *Queue) Poll() *Transfer {
	t, _ := q.next()
	return t
}

// next returns the next final transfer, or nil, and whether others are in flight.
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

// Finished yields the queue's transfers in the order in which they become final, each with its
// Err, and ends when none is in flight. The loop's body may start others. If ctx ends first,
// Finished yields nil and ctx's error, and the transfers go on. Like Wait it spins and then
// sleeps.
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
					yield(nil, fmt.Errorf("wait for a transfer of the queue: %w", err))
					return
				}
			}
			if t == nil || !yield(t, t.Err()) {
				return
			}
		}
	}
}
