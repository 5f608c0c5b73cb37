package sim

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/fault/faulttest"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
)

// Address of a simulated node's queues in DMA memory, and the maximum duration of an access to
// them, ns.
const (
	queuesAt  = 1 << 32
	queueTime = 2000
)

// inMemory is the front of a driver that uses queues in memory. It reports the driver's writes
// to packetizers to the observer.
type inMemory struct {
	*faulttest.QueueBus
	n      *Node
	rings  []byte
	broken int // failing accesses per million
}

// queuesInMemory returns a front for worlds, of whose queue accesses broken per million fail.
func queuesInMemory(broken int) func(*Node) front {
	return func(n *Node) front {
		rings := make([]byte, queues.MemorySize)
		return &inMemory{faulttest.NewQueueBus(n, queues.Config{Memory: faulttest.Bytes(rings), Addr: queuesAt}), n, rings, broken}
	}
}

// access performs an access to the queues.
func (b *inMemory) access(a *queue.Access) {
	n, w := b.n, b.n.world
	d := w.rng.Int64N(queueTime)
	broken := b.broken > 0 && w.rng.IntN(1e6) < b.broken
	n.after(d, called).run = func() {
		at := a.Addr - queuesAt
		ok := !broken && at < uint64(len(b.rings)) && at+uint64(len(a.Data)) <= uint64(len(b.rings))
		switch {
		case !ok:
		case a.Write:
			copy(b.rings[at:], a.Data)
		default:
			copy(a.Data, b.rings[at:])
		}
		n.Event(&soc.Event{Kind: soc.QueueAccessed, Access: a.ID, OK: ok})
	}
}

// Window implements device.Bus.
func (b *inMemory) Window(id device.WindowID) device.Window {
	if id == device.PKTZ {
		return device.Window{Access: watchedWindow{b.QueueBus.Window(id), b.n}}
	}
	return b.QueueBus.Window(id)
}

type watchedWindow struct {
	device.Window
	n *Node
}

// Store implements device.Access.
func (x watchedWindow) Store(off uint32, width int, v uint64) error {
	if o := x.n.world.observer; o != nil && width == 8 {
		o.Wrote(x.n, off, v)
	}
	return x.Window.Store(off, width, v)
}
