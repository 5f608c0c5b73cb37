package sim

import (
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
)

// Observer receives the events of a world as they happen. It must change nothing.
type Observer interface {
	// Moves: a write to a process's memory begins; p is nil if the slot is free.
	Moves(n *Node, p *Process, a *pldma.Access)
	Landed(p *Process, a *pldma.Access)  // the bytes are written
	Sent(n *Node, f *wire.Frame)         // before the link gets it
	Carried(out []link.Delivery)         // what the link delivers for that frame
	Arrived(f *wire.Frame, order uint64) // before the node gets it
	Reported(n *Node, a *soc.Action)     // DescriptorChanged
	Wrote(n *Node, off uint32, v uint64) // by a driver to its packetizers
	Failed() error                       // an error ends the run
}

// Nobody is an Observer that ignores every event. Observers embed it for those that they ignore.
type Nobody struct{}

// Moves implements Observer.
func (Nobody) Moves(*Node, *Process, *pldma.Access) {}

// Landed implements Observer.
func (Nobody) Landed(*Process, *pldma.Access) {}

// Sent implements Observer.
func (Nobody) Sent(*Node, *wire.Frame) {}

// Carried implements Observer.
func (Nobody) Carried([]link.Delivery) {}

// Arrived implements Observer.
func (Nobody) Arrived(*wire.Frame, uint64) {}

// Reported implements Observer.
func (Nobody) Reported(*Node, *soc.Action) {}

// Wrote implements Observer.
func (Nobody) Wrote(*Node, uint32, uint64) {}

// Failed implements Observer.
func (Nobody) Failed() error { return nil }

// Observe makes o receive the events from now on.
func (w *World) Observe(o Observer) { w.observer = o }
