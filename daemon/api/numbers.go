package daemon

import (
	"context"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/proc"
)

// numbers are a user's own of a node: since each of his attachments began.
type numbers struct {
	fault.Counts
	gone          tally.Invalidated
	node, domains int
	processes     []*proc.Process
}

// account is what each slot has counted for who has it.
type account struct {
	fault.Counts
	gone    tally.Invalidated
	process *proc.Process
}

// numbers gives those of the peer, a node each.
func (d *Daemon) numbers(ctx context.Context, q *query) (list []numbers, _ error) {
	looks, err := d.looks.accounts.lookAlways(ctx, d, q, func(n *node) (v []account, _ error) {
		stats := n.faults.Stats()
		for slot, s := range n.sessions {
			a := account{}
			if s != nil {
				a = account{stats.Slots[slot].Less(&s.joined.base), s.invalidated(), s.process}
			}
			v = append(v, a)
		}
		return v, nil
	})
	for _, l := range looks {
		own := numbers{node: l.n.index, domains: l.count(q.peer)}
		for slot := range l.v {
			if t := &l.tenants[slot]; t.pdid != 0 && q.peer.sees(t.uid) {
				own.Add(&l.v[slot].Counts)
				own.gone = own.gone.Plus(l.v[slot].gone)
				own.processes = append(own.processes, l.v[slot].process)
			}
		}
		list = append(list, own)
	}
	return list, err
}

// counters lists them as /v1/counters does: none where the peer has no domain, since 0
// would tell of the node.
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

// count counts the slots that a peer has there.
func (s *seen[T]) count(p peer) (n int) {
	for _, t := range s.tenants {
		if t.pdid != 0 && p.sees(t.uid) {
			n++
		}
	}
	return n
}
