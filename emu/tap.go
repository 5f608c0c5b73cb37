package emu

import "github.com/exanet/pfd/soc/wire"

// Tap has f called with each frame that a node sends to one of them, and the time, ns since 1970; nil
// ends that. f is called on the owning goroutine: it keeps nothing of the frame and does
// not block. A tap costs nothing where there is none but a look at a pointer. Any goroutine.
func (e *Engine) Tap(f func(at int64, f *wire.Frame)) {
	if f == nil {
		e.tap.Store(nil)
		return
	}
	e.tap.Store(&f)
}

func (e *Engine) tapped(f *wire.Frame) {
	if t := e.tap.Load(); t != nil && int(f.DstNode) < len(e.nodes) {
		(*t)(e.base.UnixNano()+e.Now(), f)
	}
}
