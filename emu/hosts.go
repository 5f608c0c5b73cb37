package emu

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/wire"
)

// Arrive passes frames from nodes of other hosts to the nodes they are for. The frames and their payloads
// are the engine's until it calls done on the owning goroutine; done must not block, and is not called
// if the engine has ended. The caller must have checked that the frames come from the nodes that they
// name, and that threads may use the trees that theirs name. Frames that no sender makes are dropped. Any goroutine.
//
// If the engine sleeps, the caller does its work, which saves the time to wake it. Memory of a process may
// block the caller then: as soon as that is found, left is called on another goroutine, and Arrive returns
// false when the memory answers. Otherwise it returns true soon.
func (e *Engine) Arrive(frames []*wire.Frame, done, left func()) bool {
	e.loop.Leave(func() {
		e.linked = e.clock.seen
		for _, f := range frames {
			e.admit(f)
		}
		done()
	})
	return e.visit(left)
}

// admit copies a frame of another host and passes it to its node. Fields that are used as indices must be
// in range, and a frame in the name of a node of this engine is refused: it would be believed.
func (e *Engine) admit(f *wire.Frame) {
	n := e.nodeOf(f.DstNode)
	if n == nil || e.nodeOf(f.SrcNode) != nil || len(f.Payload) > device.BlockSize ||
		int(f.MessageLen) > len(f.Message) || f.SrcInterface >= device.Interfaces || f.DstMailbox >= device.Interfaces {
		return
	}
	e.tapped(f)
	own := e.pool.Frame()
	*own = *f
	own.Payload, own.Shared, own.Refs = nil, nil, 0
	if len(f.Payload) > 0 {
		own.Payload = e.pool.Payload(len(f.Payload))
		copy(own.Payload, f.Payload)
	}
	if e.recorder != nil {
		e.recorder.Admit(own)
	}
	e.step(n, &soc.Event{Kind: soc.FrameArrived, Frame: own})
}

// LinkReady reports which blocks the link on the way to the nodes first to last of another host takes. Any
// goroutine.
func (e *Engine) LinkReady(first, last device.NodeID, ready wire.Ready) {
	e.told(soc.Event{Kind: soc.LinkReady, Ready: ready}, first, last)
}

// LinkUp reports that the link on the way to the nodes first to last of another host is a new one: frames on
// the former one may be lost. Any goroutine.
func (e *Engine) LinkUp(first, last device.NodeID) {
	e.told(soc.Event{Kind: soc.LinkUp}, first, last)
}

// Gone reports that the nodes first to last of another host are gone. Transfers to them end with status
// 10, as do those that are begun later, until LinkReady reports that they are back. Any goroutine.
func (e *Engine) Gone(first, last device.NodeID) {
	e.told(soc.Event{Kind: soc.NodeGone}, first, last)
}

// Drain makes the nodes refuse new transfers to the nodes first to last of another host, with status 10,
// or take them again. Transfers that run are not affected. Any goroutine.
func (e *Engine) Drain(first, last device.NodeID, on bool) {
	e.told(soc.Event{Kind: soc.NodeDrains, OK: on}, first, last)
}

// Underway calls f on the owning goroutine with the number of transfers and reads between this engine's
// nodes and the nodes first to last of another host that have not ended. f must not block. Any goroutine.
func (e *Engine) Underway(first, last device.NodeID, f func(transfers int)) {
	e.loop.Post(func() {
		sum := 0
		for _, n := range e.nodes {
			if first > last {
				break
			}
			sum += n.soc.Underway(first, last)
		}
		f(sum)
	})
}

// told passes an event about nodes of another host, MaxNodes at most, to the nodes that it changes. The first
// one is always told: all share what it knows of other hosts.
func (e *Engine) told(ev soc.Event, first, last device.NodeID) {
	last = min(last, first+MaxNodes-1)
	e.loop.Post(func() {
		for i, n := range e.nodes {
			for id := first; id <= last; id++ {
				if ev.Destination = uint64(id); i == 0 || ev.Kind == soc.NodeGone || n.soc.Uses(id) {
					e.step(n, &ev)
				}
			}
		}
	})
}
