package stream

import (
	"context"
	"time"

	"github.com/exanet/pfd/rdma"
)

// pump waits for the endpoint's events on behalf of all goroutines that wait for one. It is the
// only place that knows how.
type pump struct {
	ep   *rdma.Endpoint
	kick chan struct{}
}

// idle is how long the pump sleeps if no goroutine waits: it has to keep time for the peers only.
// Defined by this project.
const idle = 20 * time.Millisecond

func newPump(ep *rdma.Endpoint) *pump { return &pump{ep: ep, kick: make(chan struct{}, 1)} }

// wait returns when check has returned true, which it calls after each event; if no goroutine is
// asleep, when one is, or after a time. An error is the end of the attachment.
func (p *pump) wait(asleep bool, most time.Duration, check func() bool) error {
	if asleep {
		return p.ep.Await(context.Background(), check)
	}
	t := time.NewTimer(min(most, idle))
	defer t.Stop()
	select {
	case <-p.kick:
	case <-t.C:
		looked := false
		return p.ep.Await(context.Background(), func() bool { // has the attachment ended?
			before := looked
			looked = true
			return before
		})
	}
	return nil
}

// wake tells the pump that a goroutine falls asleep.
func (p *pump) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}
