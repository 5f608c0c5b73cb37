package api

import (
	"context"
	"sync"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon/session"
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

// seen is what a look at a node found, and who had its slots at that moment.
type seen[T any] struct {
	n       *session.Node
	tenants [device.Slots]session.Tenancy
	at      time.Time
	v       T
	err     error
}

// sees tells whether a peer may see what belongs to a slot and a PDID, and began
// age ago (-1: unknown): what is older than the attachment is its predecessor's.
func (s *seen[T]) sees(p Peer, slot int, pdid device.PDID, age int64) bool {
	if p.All {
		return true
	}
	if slot < 0 || slot >= device.Slots {
		return false
	}
	t := &s.tenants[slot]
	return t.PDID != 0 && t.PDID == pdid && t.UID == p.UID && age >= 0 && age <= t.Until-t.Since
}

// seesDomain is sees for what names its domain by the generation, too.
func (s *seen[T]) seesDomain(p Peer, slot int, pdid device.PDID, gen device.Generation) bool {
	if p.All {
		return true
	}
	t := &s.tenants[slot]
	return t.PDID != 0 && t.PDID == pdid && t.Generation == gen && t.UID == p.UID
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
func (l *looks[T]) look(ctx context.Context, h Host, q *query, f func(n *session.Node) (T, error)) ([]*seen[T], error) {
	if !q.peer.All && !h.Attached(q.peer.UID) {
		return nil, nil
	}
	return l.lookAlways(ctx, h, q, f)
}

// lookAlways is look where who has nothing here is answered, too.
func (l *looks[T]) lookAlways(ctx context.Context, h Host, q *query, f func(n *session.Node) (T, error)) (list []*seen[T], _ error) {
	if q.peer.All {
		err := h.Each(ctx, q.node, func(n *session.Node) error {
			s := lookAt(n, f)
			list = append(list, s)
			return s.err
		})
		return list, err
	}
	asked := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range h.Nodes() {
		if q.node != control.AllNodes && q.node != n.Index() {
			continue
		}
		s := l.kept[n.Index()]
		if s == nil || s.at.Before(asked) {
			if s != nil {
				select {
				case <-time.After(time.Until(s.at.Add(lookTime))):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			err := h.Each(ctx, n.Index(), func(n *session.Node) error {
				s = lookAt(n, f)
				return s.err
			})
			if err != nil {
				return nil, err
			}
			if l.kept == nil {
				l.kept = map[int]*seen[T]{}
			}
			l.kept[n.Index()] = s
		}
		list = append(list, s)
	}
	return list, nil
}

// lookAt looks at a node. On the owning goroutine.
func lookAt[T any](n *session.Node, f func(n *session.Node) (T, error)) *seen[T] {
	s := &seen[T]{n: n, at: time.Now()}
	s.v, s.err = f(n)
	for i := range s.tenants {
		s.tenants[i] = n.Tenant(i)
	}
	return s
}

// budget spreads the questions of each uid that does not see everything: one in
// askPause is answered.
type budget struct {
	mu   sync.Mutex
	next map[uint32]time.Time
}

// wait waits until it is a peer's turn, or ctx ends.
func (b *budget) wait(ctx context.Context, p Peer) {
	if p.All {
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
	at := b.next[p.UID]
	if at.Before(now) {
		at = now
	}
	b.next[p.UID] = at.Add(askPause)
	b.mu.Unlock()
	select {
	case <-time.After(at.Sub(now)):
	case <-ctx.Done():
	}
}

// seesPDID is sees for what names a domain by its PDID alone.
func (s *seen[T]) seesPDID(p Peer, pdid device.PDID) bool {
	if p.All {
		return true
	}
	for _, t := range s.tenants {
		if pdid != 0 && t.PDID == pdid {
			return t.UID == p.UID
		}
	}
	return false
}
