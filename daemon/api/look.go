package api

import (
	"context"
	"sync"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/quota"
)

// Bounds for the peers that do not see everything. Values below are defined by this project.
const (
	lookTime = 100 * time.Millisecond // the least interval of looks at a node, for all of them together
	askPause = 10 * time.Millisecond  // the least interval of answers to one uid
)

// Host is the part of session.Host that the control interface needs.
type Host interface {
	Nodes() []*session.Node
	// Each calls f on the owning goroutine for the node with a node id, or for each node if
	// the id is control.AllNodes.
	Each(ctx context.Context, id int, f func(*session.Node) error) error
	Features() *session.Features
	// Attached reports whether a uid has an attachment.
	Attached(uid uint32) bool
	Handshakes() *quota.Quota
	Rings() int
	// Trees returns the trees of GSAS threads, and GSASUsed how many bytes each user has there.
	Trees() []tree.Info
	GSASUsed() map[uint32]uint64
	// Refused returns how many connections to the attachment socket got no attachment, and
	// how many more were closed at once.
	Refused() (refused, dropped uint64)
	// Draining returns a channel that is closed when pfd begins to end.
	Draining() <-chan struct{}
}

// seen is the result of a look at a node, with its tenants at that moment.
type seen[T any] struct {
	n       *session.Node
	tenants [device.Slots]session.Tenancy
	at      time.Time
	v       T
	err     error
}

// owns reports whether a peer may see an object of a slot and a PDID that began age ago (-1:
// unknown). An object older than the slot's attachment belongs to a former one.
func (s *seen[T]) owns(p Peer, slot int, pdid device.PDID, age int64) bool {
	if p.All {
		return true
	}
	if slot < 0 || slot >= device.Slots {
		return false
	}
	t := &s.tenants[slot]
	return t.PDID != 0 && t.PDID == pdid && p.sees(t.UID) && age >= 0 && age <= t.Until-t.Since
}

// ownsDomain is like owns, for an object that names the generation of its domain.
func (s *seen[T]) ownsDomain(p Peer, slot int, pdid device.PDID, gen device.Generation) bool {
	if p.All {
		return true
	}
	t := &s.tenants[slot]
	return t.PDID != 0 && t.PDID == pdid && t.Generation == gen && p.sees(t.UID)
}

// looks keeps the last result for the peers that do not see everything.
type looks[T any] struct {
	mu   sync.Mutex
	kept map[int]*seen[T] // by node
}

// look calls f on the owning goroutine of each node that a query names. For a peer that sees
// everything it does so at once. Other peers wait up to lookTime for the next look, which
// answers all that wait; a peer without an attachment gets nothing. No result is older than
// its query. The caller chooses what of the result the peer may see.
func (l *looks[T]) look(ctx context.Context, h Host, q *query, f func(n *session.Node) (T, error)) ([]*seen[T], error) {
	if !q.peer.All && !h.Attached(q.peer.UID) {
		return nil, nil
	}
	return l.lookAlways(ctx, h, q, f)
}

// lookAlways is like look but also answers peers that have no attachment.
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
		if q.node != control.AllNodes && q.node != n.Number() {
			continue
		}
		s := l.kept[n.Number()]
		if s == nil || s.at.Before(asked) {
			if s != nil {
				select {
				case <-time.After(time.Until(s.at.Add(lookTime))):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			err := h.Each(ctx, n.Number(), func(n *session.Node) error {
				s = lookAt(n, f)
				return s.err
			})
			if err != nil {
				return nil, err
			}
			if l.kept == nil {
				l.kept = map[int]*seen[T]{}
			}
			l.kept[n.Number()] = s
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

// budget delays the requests of each uid that does not see everything to one in askPause.
type budget struct {
	mu   sync.Mutex
	next map[uint32]time.Time
}

// wait waits until the next request of a peer is due, or ctx ends.
func (b *budget) wait(ctx context.Context, p Peer) {
	if p.All {
		return
	}
	now := time.Now()
	b.mu.Lock()
	if b.next == nil || len(b.next) > controlConns {
		kept := map[uint32]time.Time{} // a uid that is not in it need not wait
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

// ownsPDID is like owns, for an object that names only a PDID.
func (s *seen[T]) ownsPDID(p Peer, pdid device.PDID) bool {
	if p.All {
		return true
	}
	for _, t := range s.tenants {
		if pdid != 0 && t.PDID == pdid {
			return p.sees(t.UID)
		}
	}
	return false
}
