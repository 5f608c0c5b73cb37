package workload

import (
	"context"

	"github.com/exanet/pfd/daemon/control"
)

// pair presents two pfds of one network as one.
type pair struct {
	a, b Daemon
	of   int // number of a's nodes
}

// Pair returns one Daemon for two pfds on one network: node i of b is node
// len(nodes of a) + i. Options.ToSocket must be b's socket. Status returns that of a.
func Pair(ctx context.Context, a, b Daemon) (Daemon, error) {
	nodes, err := a.Nodes(ctx, control.AllNodes)
	if err != nil {
		return nil, err
	}
	return &pair{a: a, b: b, of: len(nodes)}, nil
}

func (p *pair) Status(ctx context.Context) (control.Status, error) { return p.a.Status(ctx) }

func (p *pair) Nodes(ctx context.Context, node int) ([]control.Node, error) {
	return merge(ctx, p, node, Daemon.Nodes, func(n *control.Node) *int { return &n.Index })
}

func (p *pair) Domains(ctx context.Context, node int) ([]control.Domain, error) {
	return merge(ctx, p, node, Daemon.Domains, func(d *control.Domain) *int { return &d.Node })
}

func (p *pair) Counters(ctx context.Context, node int) ([]control.Counter, error) {
	return merge(ctx, p, node, Daemon.Counters, func(c *control.Counter) *int { return &c.Node })
}

func (p *pair) Faults(ctx context.Context, node, n int) ([]control.Fault, error) {
	ask := func(d Daemon, ctx context.Context, node int) ([]control.Fault, error) { return d.Faults(ctx, node, n) }
	return merge(ctx, p, node, ask, func(f *control.Fault) *int { return &f.Node })
}

// merge asks both pfds, or the one that has the node, and adds p.of to b's node numbers.
func merge[T any](ctx context.Context, p *pair, node int, ask func(Daemon, context.Context, int) ([]T, error), index func(*T) *int) ([]T, error) {
	var out []T
	if node == control.AllNodes || node < p.of {
		list, err := ask(p.a, ctx, node)
		if err != nil {
			return nil, err
		}
		out = list
	}
	if node == control.AllNodes || node >= p.of {
		if node != control.AllNodes {
			node -= p.of
		}
		list, err := ask(p.b, ctx, node)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if n := index(&list[i]); *n != control.AllNodes {
				*n += p.of
			}
		}
		out = append(out, list...)
	}
	return out, nil
}
