package api

import (
	"context"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/proc"
)

// numbers are the sums of a user's attachments to a node, since each began.
type numbers struct {
	fault.Counts
	gone          tally.Invalidated
	node, domains int
	processes     []*proc.Process
}

// numbers returns a peer's numbers for each node.
func (srv *Server) numbers(ctx context.Context, q *query) (list []numbers, _ error) {
	looks, err := srv.looks.accounts.lookAlways(ctx, srv.host, q, func(n *session.Node) (v [device.Slots]*session.Info, _ error) {
		for slot := range v {
			v[slot] = n.Attached(slot)
		}
		return v, nil
	})
	for _, l := range looks {
		own := numbers{node: l.n.Index(), domains: l.count(q.peer)}
		for slot, i := range l.v {
			if i != nil && q.peer.sees(l.tenants[slot].UID) {
				own.Add(&i.Faults)
				own.gone = own.gone.Plus(i.Gone)
				own.processes = append(own.processes, i.Process)
			}
		}
		list = append(list, own)
	}
	return list, err
}

// counters lists them as counters; none if the peer has no domain.
func (o *numbers) counters() []control.Counter {
	if o.domains == 0 {
		return nil
	}
	list := append(faultCounters(&o.Counts), goneCounters(o.gone)...)
	for i := range list {
		list[i].Node = o.node
	}
	return list
}

// count counts the slots that a peer has.
func (s *seen[T]) count(p Peer) (n int) {
	for _, t := range s.tenants {
		if t.PDID != 0 && p.sees(t.UID) {
			n++
		}
	}
	return n
}
