package pldma

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
)

// ErrAudit means that a limit is exceeded or a count is wrong.
var ErrAudit = errors.New("PLDMA audit")

// Audit checks the engine's invariants: contexts, their shares, and accesses in flight.
func (e *Engine) Audit() error {
	if e.recv.open < 0 || e.recv.open > e.cfg.Contexts {
		return fmt.Errorf("%w: %d contexts open", ErrAudit, e.recv.open)
	}
	sum := 0
	for p, n := range e.recv.byDomain {
		if n <= 0 || n > maxDomainContexts {
			return fmt.Errorf("%w: domain %d holds %d contexts", ErrAudit, p, n)
		}
		sum += n
	}
	if sum != e.recv.open {
		return fmt.Errorf("%w: %d contexts open, %d counted", ErrAudit, e.recv.open, sum)
	}
	reserve := 0
	sum = 0
	for _, n := range e.recv.bySlot {
		reserve += max(0, e.kept()-n)
		sum += n
	}
	if sum != e.recv.open || reserve != e.recv.reserve {
		return fmt.Errorf("%w: %d contexts open, %d by slot; %d reserved, %d counted", ErrAudit, e.recv.open, sum, reserve, e.recv.reserve)
	}
	var flying, waiting, waitingHigh [device.Slots]int
	for _, a := range e.accesses {
		if a.kind != 0 && a.kind != part && !a.queued {
			flying[a.Slot]++
		}
		if a.queued && a.Write && a.High {
			waitingHigh[a.Slot]++
		} else if a.queued && a.Write {
			waiting[a.Slot]++
		}
	}
	for i := range e.slots {
		q := &e.slots[i]
		if q.inflight != flying[i] || q.inflight > maxAccesses ||
			q.waiting != waiting[i] || q.waiting > maxWaiting+64 || q.waitingHigh != waitingHigh[i] || q.waitingHigh > maxWaiting+64 {
			return fmt.Errorf("%w: slot %d counts %d accesses in flight and has %d", ErrAudit, i, q.inflight, flying[i])
		}
		if q.high.head != nil && q.room(true) || q.usual.head != nil && q.room(false) {
			return fmt.Errorf("%w: slot %d has accesses waiting and room", ErrAudit, i)
		}
	}
	return nil
}

// OpenContexts returns the number of receive contexts in use.
func (e *Engine) OpenContexts() int { return e.recv.open }
