package sim

import (
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/wire"
)

// disturb makes one disturbance.
func (c *churn) disturb() {
	s, other := c.seats[c.rng.IntN(len(c.seats))], c.seats[c.rng.IntN(len(c.seats))]
	if c.windowRng != nil && s.p != nil && c.windowRng.IntN(3) == 0 {
		c.changeWindow(s)
	}
	switch k := c.rng.IntN(100); {
	case k < 58:
		read := c.rng.IntN(4) == 0
		if read && s.reads != nil {
			other = c.seats[s.reads.IntN(len(c.seats))]
		}
		c.begin(s, other, read)
	case k < 70:
		c.abort()
	case k < 78:
		if s.p != nil {
			c.Kills++
			c.kill(s)
			if c.rng.IntN(4) == 0 {
				s.uid = 3000 - s.uid
			}
			c.World.after(c.rng.Int64N(2)*c.rng.Int64N(300_000), func() { c.sit(s) })
		}
	case k < 83:
		if s.p != nil {
			c.Withdrawn++
			c.mute(s, !s.mute)
		}
	case k < 88:
		c.power(c.World.nodes[s.node])
	case k < 94:
		if s.p != nil {
			s.p.Set(churnFrom/device.PageSize+c.rng.IntN(5), absent)
		}
	default:
		c.hostile()
	}
}

// abort aborts a transfer in flight.
func (c *churn) abort() {
	for range 4 {
		if len(c.all) == 0 {
			return
		}
		m := c.all[max(0, len(c.all)-1-c.rng.IntN(6))]
		if m.ended || m.at.p == nil || m.at.p != m.src && m.at.p != m.dst {
			continue
		}
		c.Aborts++
		if m.read {
			c.ask(m, 0, 0)
			return
		}
		d := m.desc
		d.Abort = true
		m.at.p.Write(slices.Index(m.at.chans[:], m), d)
		return
	}
}

// kill ends a seat's process.
func (c *churn) kill(s *seat) {
	n, p := c.World.nodes[s.node], s.p
	for _, m := range c.all {
		if m.at == s && (m.src == p || m.dst == p) {
			m.ended = true
		}
	}
	s.p = nil
	n.Driver.Remove(p.Domain.Slot)
	if err := n.Domains.Destroy(p.Domain.Slot, nil); err != nil {
		c.wrong("ending a process: %v", err)
	}
}

// mute withdraws the rights that a seat's process grants to others, or restores them.
func (c *churn) mute(s *seat, on bool) {
	s.mute = on
	v := [4]uint64{}
	if !on {
		for i, p := range s.p.Domain.Peers {
			v[i/4] |= uint64(p) << (16 * (i % 4))
		}
	}
	for k := range v {
		_ = c.World.nodes[s.node].Window(device.PL).Write64(device.PLPDPeers+32*uint32(s.p.Domain.Slot)+8*uint32(k), v[k])
	}
}

// power cuts a node's power and restores it, or resets the node: its processes are gone, and
// others follow.
func (c *churn) power(n *Node) {
	for _, s := range c.seats {
		if s.node == int(n.id) {
			if s.p != nil {
				c.kill(s)
			}
			c.World.after(1e6+c.rng.Int64N(2e6), func() { c.sit(s) })
		}
	}
	c.lives[n.id]++
	if c.rng.IntN(3) == 0 {
		c.Resets++
		_ = n.Window(device.PL).Write32(device.PLCtrl, device.CtrlReset)
	} else {
		c.Powers++
		n.power()
	}
	life := c.lives[n.id]
	c.World.after(c.rng.Int64N(500_000), func() {
		if c.lives[n.id] != life {
			return
		}
		c.up[n.id] = life
		if err := n.start(); err != nil {
			c.wrong("starting a node: %v", err)
		}
	})
}

// hostile makes a neighbour, or a process with its own domain, send arbitrary messages.
func (c *churn) hostile() {
	w := c.World
	dst := device.NodeID(c.rng.IntN(len(w.nodes)))
	f := w.pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Kind(1 + c.rng.IntN(5)), Epoch: w.rng.Uint32() % 4, Link: w.rng.Uint32() % 4, SrcNode: 50, DstNode: dst,
		SrcPDID: device.PDID(1 + c.rng.IntN(16)), DstPDID: device.PDID(1 + c.rng.IntN(16)), SrcInterface: uint8(c.rng.IntN(64)),
		DstMailbox: uint8(c.rng.IntN(64)), SrcGeneration: device.Generation(w.rng.Uint32()), DstGeneration: device.Generation(w.rng.Uint32()),
		ID: device.TransactionID(c.rng.IntN(8)), Seq: device.Sequence(c.rng.IntN(16)), First: device.Sequence(c.rng.IntN(16)),
		Length: 4096, VA: churnBase + churnFrom, Remaining: 4096, Read: c.rng.IntN(2) == 0,
	}
	if f.Kind == wire.Data {
		f.Payload = w.pool.Payload(4096)
		clear(f.Payload)
		f.Present = wire.All(4096)
	}
	if f.Kind == wire.Message || c.rng.IntN(4) == 0 {
		f.MessageLen = 1
		f.Message[0] = mailbox.RAPF{
			Transaction: f.ID, Sequence: f.Seq, Claimed: f.SrcPDID, Fail: c.rng.IntN(2) == 0,
		}.Encode()
	}
	c.deliver(f)
}
