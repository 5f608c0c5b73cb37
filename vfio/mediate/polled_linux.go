package mediate

import (
	"time"

	"github.com/exanet/pfd/device"
)

// poller is a Function that has no vectors and must be polled.
type poller interface{ Polled() }

// polled is a function without vectors.
type polled struct{ function }

// Polled implements poller.
func (polled) Polled() {}

// pollVectors does what the vectors of a node would do, and reports whether there was anything new. It
// reads the event queue in memory, else IRQ_STATUS. It must be called on the owner.
func (n *node) pollVectors(l *link) bool {
	if l.rings != nil && l.rings.On() {
		before := l.rings.Stats().Events
		v := device.VectorFIFO
		if now := n.m.Now(); now-n.checked >= int64(statusPause) {
			n.checked, v = now, device.VectorFault // whether an error has turned the queues off
		}
		l.rings.Vector(v)
		return l.rings.Stats().Events != before
	}
	if n.handler == nil {
		return false
	}
	status, err := l.fn.Read(int(device.PL), device.PLIRQStatus, 4)
	mask := uint64(0)
	if err == nil && status != 0 {
		mask, err = l.fn.Read(int(device.PL), device.PLIRQMask, 4)
	}
	if err != nil {
		return false // the device is gone, which is posted
	}
	open := uint32(status &^ mask)
	rose := open &^ n.open
	n.open = open
	for v := range device.Vectors {
		if open>>v&1 != 0 && !(v == device.VectorDone && n.raised) {
			n.interrupt(v)
		}
	}
	return rose != 0
}

// rest sleeps until timeout, or for a shorter time if a node has no vectors.
func (m *Machine) rest(timeout time.Duration) {
	polls, most := false, idleNap
	for _, n := range m.nodes {
		if l := n.link.Load(); l != nil && l.polled {
			polls = true
		}
		for _, s := range n.slots {
			if s != nil {
				most = longNap
			}
		}
	}
	if !polls {
		m.loop.Wait(timeout)
		return
	}
	if m.nap = min(m.nap, most); !m.loop.Wait(m.nap) {
		m.nap *= 2
	}
}
