package queues

import (
	"context"

	"github.com/exanet/pfd/device"
)

// Bus is a device.Bus whose driver works by queues in memory. Start must follow.
type Bus struct {
	device.Bus
	*Queues
	handler device.Handler
}

// NewBus gives the bus of a node with the queues in front of it. Of cfg, Window,
// Later and Raise are the bus's own.
func NewBus(bus device.Bus, cfg Config) *Bus {
	b := &Bus{Bus: bus}
	posted := false
	deliver := func() { posted = false; b.deliver() }
	cfg.Window, cfg.Later = bus.Window, bus.Post
	cfg.Raise = func() {
		if !posted {
			posted = true
			bus.Post(deliver)
		}
	}
	b.Queues = New(cfg)
	return b
}

// Window implements device.Bus.
func (b *Bus) Window(id device.WindowID) device.Window { return b.Queues.Window(id) }

// Serve implements device.Bus.
func (b *Bus) Serve(ctx context.Context, h device.Handler) error {
	b.Post(func() { b.handler = h; b.deliver() })
	return b.Bus.Serve(ctx, b)
}

// Handle has h take the vectors, for a bus that is not served.
func (b *Bus) Handle(h device.Handler) { b.handler = h }

// Interrupt implements device.Handler: it takes a vector of the device.
func (b *Bus) Interrupt(v int) {
	if !b.On() && b.handler != nil {
		b.handler.Interrupt(v)
		return
	}
	b.Vector(v)
	b.deliver()
}

func (b *Bus) deliver() {
	if b.handler != nil {
		b.Deliver(b.handler)
	}
}
