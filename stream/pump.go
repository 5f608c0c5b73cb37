package stream

import (
	"context"
	"sync"
	"time"

	"github.com/exanet/pfd/rdma"
)

// pump waits for the endpoint's events on behalf of all goroutines that wait for one. It is the
// only place that knows how.
type pump struct {
	ring *rdma.Ring // of the mailbox: it wakes for words and ends of writes, too

	mu   sync.Mutex
	rung bool
	stop context.CancelFunc // of the wait in progress
}

func newPump(ep *rdma.Endpoint) (*pump, error) {
	r, err := ep.Ring(nil)
	if err != nil {
		return nil, err
	}
	return &pump{ring: r}, nil
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
	switch {
	case rung:
		return nil
	case !arrivals:
		<-ctx.Done()
		return nil
	}
	if err := p.ring.Wait(ctx); ctx.Err() == nil {
		return err
	}
	return nil
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
