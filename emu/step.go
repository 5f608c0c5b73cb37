package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
)

// step passes an event to a node and queues the actions that the node requests.
func (e *Engine) step(n *node, ev *soc.Event) {
	from := len(e.actions)
	n.soc.Stamp(e.tracer.stamp(e.clock.seen))
	e.actions = n.soc.Step(e.clock.now, ev, e.actions)
	if e.recorder != nil {
		e.recorder.Step(e.clock.now, n.index, ev, e.actions[from:])
	}
	e.enqueue(n, from)
}

// store writes a register for the driver, and queues the actions that the node requests.
func (e *Engine) store(n *node, id device.WindowID, off uint32, width int, v uint64) {
	from := len(e.actions)
	n.soc.Stamp(e.tracer.stamp(e.clock.seen))
	e.actions = n.soc.Store(e.clock.now, id, off, width, v, e.actions)
	if e.recorder != nil {
		e.recorder.Store(e.clock.now, n.index, id, off, width, v, e.actions[from:])
	}
	e.enqueue(n, from)
}

// load reads a register for the driver.
func (e *Engine) load(n *node, id device.WindowID, off uint32, width int) uint64 {
	v := n.soc.Load(id, off, width)
	if e.recorder != nil {
		e.recorder.Load(n.index, id, off, width, v)
	}
	if id == device.MBOX {
		n.due = n.deadline() // the next message may go into an event now
	}
	return v
}

// enqueue queues the actions from number from on.
func (e *Engine) enqueue(n *node, from int) {
	n.due = n.deadline()
	e.traceRefused(n, e.actions[from:])
	for _, a := range e.actions[from:] {
		e.queueOf(&a).add(item{n, a})
	}
	e.actions = e.actions[:from]
}

// queueOf returns the queue of an action. Everything is urgent except moving data of the medium or
// low class, and what leads to it: that would delay everything else. Data at its destination goes
// before data at its source, because it ends blocks. Completing blocks together lets one system call
// read the memory of all their successors.
func (e *Engine) queueOf(a *soc.Action) *itemQueue {
	switch a.Kind {
	case soc.Walk, soc.Move:
		switch {
		case a.Access.High:
			return &e.urgent
		case a.Access.Write:
			return &e.arriving
		}
		return &e.leaving
	case soc.Transmit:
		if len(a.Frame.Payload) > 0 && !a.Frame.Short() {
			return &e.arriving
		}
	}
	return &e.urgent
}
