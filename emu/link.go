package emu

import (
	"math/rand/v2"

	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/wire"
)

// flight is a node's link to the others, and the frames on it, those that arrive first
// before others. Without a link nothing is ever on it.
type flight struct {
	link   *link.Link
	frames []link.Delivery
}

func newFlight(o *link.Options, node int, pool *wire.Pool) flight {
	if !o.Some() {
		return flight{}
	}
	seed := o.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return flight{link: link.New(o.Injection(), rand.New(rand.NewPCG(seed, uint64(node))), pool)}
}

// deadline is when a node wants to be looked at: its machines, or its first frame.
func (n *node) deadline() int64 {
	due := n.soc.Deadline()
	if len(n.flight.frames) > 0 {
		due = min(due, n.flight.frames[0].At)
	}
	return due
}

// transmit sends a node's frame on its way. What a node sends to itself takes no link.
func (e *Engine) transmit(n *node, f *wire.Frame) {
	e.tapped(f)
	if e.cfg.OnLink != nil {
		sent := f
		if f = e.cfg.OnLink(f); f == nil {
			e.pool.Put(sent)
			return
		}
	}
	if l := &n.flight; l.link != nil && int(f.DstNode) != n.index {
		l.frames = l.link.Carry(e.clock.now, f, l.frames)
		n.due = n.deadline()
		return
	}
	e.receive(f)
}

// arrive takes the frames of a node that are there by now.
func (e *Engine) arrive(n *node) {
	l := &n.flight
	there := 0
	for there < len(l.frames) && l.frames[there].At <= e.clock.now {
		there++
	}
	for i := range there {
		e.receive(l.frames[i].Frame)
	}
	l.frames = append(l.frames[:0], l.frames[there:]...)
}

func (e *Engine) receive(f *wire.Frame) {
	if int(f.DstNode) >= len(e.nodes) {
		e.pool.Put(f)
		return
	}
	e.step(e.nodes[f.DstNode], &soc.Event{Kind: soc.FrameArrived, Frame: f})
}
