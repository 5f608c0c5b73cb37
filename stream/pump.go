package stream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/rdma"
)

// pump waits for the endpoint's events on behalf of all goroutines that wait for one. It is the
// only place that knows how.
type pump struct {
	ep   *rdma.Endpoint
	ring *rdma.Ring // nil: this process can share no memory

	mu   sync.Mutex
	rung bool
	stop context.CancelFunc // of the wait in progress
}

func newPump(ep *rdma.Endpoint) (*pump, error) {
	r, err := ep.Ring(nil)
	if refused, ok := errors.AsType[*attach.RefusedError](err); ok && refused.Code == attach.CodeMemory {
		r, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &pump{ep: ep, ring: r}, nil
}

// wait waits for a time, until wake is called, or for arrivals: a message, a peer's words, the end
// of a write. An error is the end of the attachment, which only a wait for arrivals notices.
func (p *pump) wait(arrivals bool, most time.Duration) error {
	ctx, stop := context.WithTimeout(context.Background(), most)
	defer stop()
	p.mu.Lock()
	p.stop = stop
	rung := p.rung
	p.rung = false
	p.mu.Unlock()
	var err error
	switch {
	case rung:
		return nil
	case !arrivals:
		<-ctx.Done()
		return nil
	case p.ring == nil:
		looked := false
		err = p.ep.Await(ctx, func() bool {
			before := looked
			looked = true
			return before
		})
	default:
		err = p.ring.Wait(ctx)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// wake ends the wait in progress, or the next one.
func (p *pump) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rung = true
	if p.stop != nil {
		p.stop()
	}
}
