package emu

import (
	"context"
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/space"
)

// bus is device.Bus and space.Machine for one node: function calls on the owning goroutine.
type bus struct {
	engine *Engine
	node   *node
}

func (b *bus) Window(id device.WindowID) device.Window { return b.node.windows[id] }

func (b *bus) Post(f func()) { b.engine.loop.Post(f) }

func (b *bus) Serve(ctx context.Context, h device.Handler) error {
	b.engine.loop.Post(func() { b.node.handler, b.engine.vectors = h, true })
	select {
	case <-ctx.Done():
	case <-b.engine.loop.Done():
		return fmt.Errorf("node %d: the emulated machine has ended: %w", b.node.index, device.ErrGone)
	}
	b.engine.loop.Do(func() { b.node.handler = nil })
	return nil
}

// PageIn implements space.Machine.
func (b *bus) PageIn(slotIndex int, op *space.Op, long bool) {
	c := b.engine.newCall()
	c.node, c.op, c.long = b.node, op, long
	if slotIndex >= 0 && slotIndex < device.Slots {
		c.slot, c.index = b.node.slots[slotIndex], slotIndex
	}
	b.engine.tasks = append(b.engine.tasks, c)
}

// window is device.Access to a node's registers.
type window struct {
	engine *Engine
	node   *node
	id     device.WindowID
}

// Load implements device.Access.
func (w *window) Load(off uint32, width int) (uint64, error) {
	return w.engine.load(w.node, w.id, off, width), nil
}

// Store implements device.Access.
func (w *window) Store(off uint32, width int, v uint64) error {
	w.engine.store(w.node, w.id, off, width, v)
	return nil
}
