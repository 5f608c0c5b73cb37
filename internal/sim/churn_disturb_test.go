package sim

import (
	"slices"

	"github.com/exanet/pfd/device"
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
		c.World.Stranger(c.rng, churnBase+churnFrom)
	}
}

// part takes a link down for a while. Nodes are told early or late, also that it is up again.
func (c *churn) part() {
	a, n := c.linkRng.IntN(len(c.World.nodes)), len(c.World.nodes)
	b := (a + 1 + c.linkRng.IntN(n-1)) % n
	late := func() int64 { return c.linkRng.Int64N(2) * c.linkRng.Int64N(1e6) }
	c.Parts++
	c.World.Part(a, b, true, late)
	c.World.after(c.linkRng.Int64N(2)*c.linkRng.Int64N(400e6)+c.linkRng.Int64N(5e6), func() { c.World.Part(a, b, false, late) })
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
	if err := n.Kill(p); err != nil {
		c.wrong("%v", err)
	}
}

// mute withdraws the rights that a seat's process grants to others, or restores them.
func (*churn) mute(s *seat, on bool) {
	s.mute = on
	s.p.Mute(on)
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
		n.Reset()
	} else {
		c.Powers++
		n.Power()
	}
	life := c.lives[n.id]
	c.World.after(c.rng.Int64N(500_000), func() {
		if c.lives[n.id] != life {
			return
		}
		c.up[n.id] = life
		if err := n.Restart(); err != nil {
			c.wrong("starting a node: %v", err)
		}
	})
}
