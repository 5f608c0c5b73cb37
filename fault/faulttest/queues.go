package faulttest

import (
	"context"
	"encoding/binary"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
)

// QueueBus is a device.Bus whose driver uses queues in memory.
type QueueBus struct {
	device.Bus
	*queues.Queues
	handler device.Handler
}

// NewQueueBus returns the bus of a node with queues in memory. It sets Window, Later and Raise of
// cfg. The caller must call Start.
func NewQueueBus(bus device.Bus, cfg queues.Config) *QueueBus {
	b := &QueueBus{Bus: bus}
	posted := false
	deliver := func() { posted = false; b.deliver() }
	cfg.Window, cfg.Later = bus.Window, bus.Post
	cfg.Raise = func() {
		if !posted {
			posted = true
			bus.Post(deliver)
		}
	}
	b.Queues = queues.New(cfg)
	return b
}

// Window implements device.Bus.
func (b *QueueBus) Window(id device.WindowID) device.Window { return b.Queues.Window(id) }

// Serve implements device.Bus.
func (b *QueueBus) Serve(ctx context.Context, h device.Handler) error {
	b.Post(func() { b.handler = h; b.deliver() })
	return b.Bus.Serve(ctx, b)
}

// Handle sets the handler of the vectors, for a bus that is not served.
func (b *QueueBus) Handle(h device.Handler) { b.handler = h }

// Interrupt implements device.Handler: it handles a vector of the device.
func (b *QueueBus) Interrupt(v int) {
	if !b.On() && b.handler != nil {
		b.handler.Interrupt(v)
		return
	}
	b.Vector(v)
	b.deliver()
}

func (b *QueueBus) deliver() {
	if b.handler != nil {
		b.Deliver(b.handler)
	}
}

// Bytes is a queues.Memory for one goroutine.
type Bytes []byte

// Load implements queues.Memory.
func (b Bytes) Load(offset uint32) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }

// Store implements queues.Memory.
func (b Bytes) Store(offset uint32, v uint64) { binary.LittleEndian.PutUint64(b[offset:], v) }
