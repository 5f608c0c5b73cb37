package sim

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/queue"
)

// Where a simulated node's queues lie in DMA memory, and how long an access of them
// takes at most, ns.
const (
	queuesAt  = 1 << 32
	queueTime = 2000
)

// useQueues puts the queues in memory in front of a node's driver, who is given the
// bus to use.
func (n *Node) useQueues() (device.Bus, error) {
	if n.queues == nil {
		n.rings = make([]byte, queues.MemorySize)
		n.queues = queues.NewBus(n, queues.Config{Memory: queues.Bytes(n.rings), Addr: queuesAt})
	}
	return watchedBus{n.queues, n}, n.queues.Start()
}

// queueAccess makes an access of the queues; one in a while fails, where the
// scenario says so.
func (n *Node) queueAccess(a *queue.Access) {
	w := n.world
	d := w.rng.Int64N(queueTime)
	broken := w.cfg.BreakQueues > 0 && w.rng.IntN(1e6) < w.cfg.BreakQueues
	w.after(d, n.alive(func() {
		at := a.Addr - queuesAt
		ok := !broken && at < uint64(len(n.rings)) && at+uint64(len(a.Data)) <= uint64(len(n.rings))
		switch {
		case !ok:
		case a.Write:
			copy(n.rings[at:], a.Data)
		default:
			copy(a.Data, n.rings[at:])
		}
		n.Event(&soc.Event{Kind: soc.QueueAccessed, Access: a.ID, OK: ok})
	}))
}

// watchedBus tells the watch what the driver writes into packetizers.
type watchedBus struct {
	*queues.Bus
	n *Node
}

// Window implements device.Bus.
func (b watchedBus) Window(id device.WindowID) device.Window {
	if id == device.PKTZ {
		return watchedWindow{b.Bus.Window(id), b.n}
	}
	return b.Bus.Window(id)
}

type watchedWindow struct {
	device.Window
	n *Node
}

// Write64 implements device.Window.
func (x watchedWindow) Write64(off uint32, v uint64) error {
	if x.n.world.watch != nil {
		x.n.world.watch.wrote(x.n, off, v)
	}
	return x.Window.Write64(off, v)
}
