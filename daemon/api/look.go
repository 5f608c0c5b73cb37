package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
)

// Bounds of what those ask who do not see everything (ours).
const (
	// lookTime is between two looks at a node for them: so often the engine is asked
	// at most, by all of them together.
	lookTime = 100 * time.Millisecond
	// askPause is between two answers to one uid.
	askPause = 10 * time.Millisecond
)

// tenant is who has a slot.
type tenant struct {
	uid  uint32
	pdid device.PDID // 0: nobody has it
	gen  device.Generation
	age  int64 // of the attachment, ns
}

// seen is what a look at a node found, and who had its slots at that moment.
type seen[T any] struct {
	n       *node
	tenants [device.Slots]tenant
	at      time.Time
	now     int64 // Daemon.now when it had looked
	v       T
	err     error
}

// sees tells whether a peer may see what belongs to a slot and a PDID, and began
// age ago (-1: unknown): what is older than the attachment is its predecessor's.
func (s *seen[T]) sees(p peer, slot int, pdid device.PDID, age int64) bool {
	if p.all {
		return true
	}
	if slot < 0 || slot >= device.Slots {
		return false
	}
	t := &s.tenants[slot]
	return t.pdid != 0 && t.pdid == pdid && t.uid == p.uid && age >= 0 && age <= t.age
}

// seesDomain is sees for what names its domain by the generation, too.
func (s *seen[T]) seesDomain(p peer, slot int, pdid device.PDID, gen device.Generation) bool {
	if p.all {
		return true
	}
	t := &s.tenants[slot]
	return t.pdid != 0 && t.pdid == pdid && t.gen == gen && t.uid == p.uid
}

// looks keeps what was found last, for who does not see everything.
type looks[T any] struct {
	mu   sync.Mutex
	kept map[int]*seen[T] // by node
}

// look calls f on the owning goroutine for the nodes that a query asks for. Who
// sees everything is answered at once; others wait for the next look, up to lookTime,
// which answers all who wait for it, and those who have nothing here are answered by
// nothing at all. No answer is older than its question. f copies only: what the peer
// may see of it is for the caller to choose.
func (l *looks[T]) look(ctx context.Context, d *Daemon, q *query, f func(n *node) (T, error)) ([]*seen[T], error) {
	if !q.peer.all && !d.attached(q.peer.uid) {
		return nil, nil
	}
	return l.lookAlways(ctx, d, q, f)
}

// lookAlways is look where who has nothing here is answered, too.
func (l *looks[T]) lookAlways(ctx context.Context, d *Daemon, q *query, f func(n *node) (T, error)) (list []*seen[T], _ error) {
	if q.peer.all {
		err := d.each(ctx, q, func(n *node) error {
			s := lookAt(d, n, f)
			list = append(list, s)
			return s.err
		})
		return list, err
	}
	asked := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range d.nodes {
		if q.node != control.AllNodes && q.node != n.index {
			continue
		}
		s := l.kept[n.index]
		if s == nil || s.at.Before(asked) {
			if s != nil {
				select {
				case <-time.After(time.Until(s.at.Add(lookTime))):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			err := d.each(ctx, &query{node: n.index}, func(n *node) error {
				s = lookAt(d, n, f)
				return s.err
			})
			if err != nil {
				return nil, err
			}
			if l.kept == nil {
				l.kept = map[int]*seen[T]{}
			}
			l.kept[n.index] = s
		}
		list = append(list, s)
	}
	return list, nil
}

// lookAt looks at a node. On the owning goroutine.
func lookAt[T any](d *Daemon, n *node, f func(n *node) (T, error)) *seen[T] {
	s := &seen[T]{n: n, at: time.Now()}
	s.v, s.err = f(n)
	s.now = d.now()
	for i, o := range n.sessions {
		if o != nil {
			s.tenants[i] = tenant{o.uid, o.joined.domain.PDID, o.joined.domain.Generation, s.now - o.joined.since}
		}
	}
	return s
}

// attached tells whether a uid has an attachment.
func (d *Daemon) attached(uid uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.live {
		if s.uid == uid {
			return true
		}
	}
	return false
}

// budget spreads the questions of each uid that does not see everything: one in
// askPause is answered.
type budget struct {
	mu   sync.Mutex
	next map[uint32]time.Time
}

// wait waits until it is a peer's turn, or ctx ends.
func (b *budget) wait(ctx context.Context, p peer) {
	if p.all {
		return
	}
	now := time.Now()
	b.mu.Lock()
	if b.next == nil || len(b.next) > controlConns {
		kept := map[uint32]time.Time{} // who is not in it may ask at once
		for uid, at := range b.next {
			if at.After(now) {
				kept[uid] = at
			}
		}
		b.next = kept
	}
	at := b.next[p.uid]
	if at.Before(now) {
		at = now
	}
	b.next[p.uid] = at.Add(askPause)
	b.mu.Unlock()
	select {
	case <-time.After(at.Sub(now)):
	case <-ctx.Done():
	}
}

// seesPDID is sees for what names a domain by its PDID alone.
func (s *seen[T]) seesPDID(p peer, pdid device.PDID) bool {
	if p.all {
		return true
	}
	for _, t := range s.tenants {
		if pdid != 0 && t.pdid == pdid {
			return t.uid == p.uid
		}
	}
	return false
}
