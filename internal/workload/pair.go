package workload

import (
	"context"
	"slices"

	"github.com/exanet/pfd/daemon/control"
)

// pair presents two pfds of one network as one.
type pair struct {
	a, b Daemon
	of   []int // a's nodes
}

// Pair returns one Daemon for two pfds on one network, whose nodes have different ids.
// Options.ToSocket must be b's socket. Status returns that of a.
func Pair(ctx context.Context, a, b Daemon) (Daemon, error) {
	nodes, err := a.Nodes(ctx, control.AllNodes)
	if err != nil {
		return nil, err
	}
	p := &pair{a: a, b: b}
	for _, n := range nodes {
		p.of = append(p.of, n.Index)
	}
	return p, nil
}

func (p *pair) Status(ctx context.Context) (control.Status, error) { return p.a.Status(ctx) }

func (p *pair) Nodes(ctx context.Context, node int) ([]control.Node, error) {
	return merge(ctx, p, node, Daemon.Nodes)
}

func (p *pair) Domains(ctx context.Context, node int) ([]control.Domain, error) {
	return merge(ctx, p, node, Daemon.Domains)
}

func (p *pair) Counters(ctx context.Context, node int) ([]control.Counter, error) {
	return merge(ctx, p, node, Daemon.Counters)
}

func (p *pair) Faults(ctx context.Context, node, n int) ([]control.Fault, error) {
	return merge(ctx, p, node, func(d Daemon, ctx context.Context, node int) ([]control.Fault, error) { return d.Faults(ctx, node, n) })
}

// merge asks both pfds, or the one that has the node.
func merge[T any](ctx context.Context, p *pair, node int, ask func(Daemon, context.Context, int) ([]T, error)) (out []T, err error) {
	first := slices.Contains(p.of, node)
	if first || node == control.AllNodes {
		out, err = ask(p.a, ctx, node)
	}
	if err == nil && !first {
		var list []T
		list, err = ask(p.b, ctx, node)
		out = append(out, list...)
	}
	return out, err
}
