package emu

import (
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/wire"
)

// Tap makes the engine call f with each frame that a node sends to another or to itself, and with the
// time in ns since 1970; nil stops that. f is called on the owning goroutine. It must not block or
// keep the frame. When off, a tap costs one pointer check. Any goroutine.
func (e *Engine) Tap(f func(at int64, f *wire.Frame)) {
	if f == nil {
		e.tap.Store(nil)
		return
	}
	e.tap.Store(&f)
}

func (e *Engine) tapped(f *wire.Frame) {
	if t := e.tap.Load(); t != nil && e.route(f.DstNode) {
		(*t)(e.base.UnixNano()+e.Now(), f)
	}
}

// transmit puts a frame on its node's link. A frame to the node itself takes no link.
func (e *Engine) transmit(n *node, f *wire.Frame) {
	e.tapped(f)
	if e.cfg.OnLink != nil {
		sent := f
		if f = e.cfg.OnLink(f); f == nil {
			e.pool.Put(sent)
			return
		}
	}
	if l := &n.flight; l.link != nil && f.DstNode != n.soc.ID() && e.nodeOf(f.DstNode) != nil {
		l.frames = l.link.Carry(e.clock.now, f, l.frames)
		n.due = n.deadline()
		return
	}
	e.receive(f)
}

// arrive delivers a node's frames that are due.
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
	if n := e.nodeOf(f.DstNode); n != nil {
		e.step(n, &soc.Event{Kind: soc.FrameArrived, Frame: f})
		return
	}
	if e.cfg.Carrier != nil {
		e.cfg.Carrier.Send(f)
		e.sent = true
	}
	e.pool.Put(f)
}
