package sim

import (
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/pldma"
)

// Memory windows in the churn scenario: in a third of the seeds processes of two users open ranges
// of their memory to others, and withdraw them. A process outside the group then reaches exactly
// these ranges, and nothing of it after a withdrawal is answered.

// hasWindows reports whether a seed has memory windows.
func hasWindows(seed uint64) bool { return seed%3 == 1 }

// guestAccess is a write in flight that only a window admitted.
type guestAccess struct {
	node   device.NodeID
	access uint32
}

// changeWindow opens a window of a seat's process, or withdraws one.
func (c *churn) changeWindow(s *seat) {
	rng := c.windowRng
	n, p := c.World.nodes[s.node], s.p
	if len(s.windows) > 0 && rng.IntN(2) == 0 {
		c.closeWindow(s, s.windows[rng.IntN(len(s.windows))])
		return
	}
	w := &device.MemoryWindow{VA: p.Base, Bytes: uint64(len(p.Data)), Rights: device.Rights(1 + rng.IntN(3))}
	switch rng.IntN(4) {
	case 0: // without the completion words
		w.Bytes = churnFrom + 16*device.PageSize
	case 1: // a part of the sources and destinations
		from := rng.IntN(churnFrom)
		w.VA, w.Bytes = p.Base+device.VA(from), uint64(1+rng.IntN(churnFrom))
	case 2:
		w.Peer = c.seats[rng.IntN(len(c.seats))].pdid()
	}
	if err := n.Domains.Window(p.Domain.Slot, *w); err != nil {
		c.wrong("opening a window: %v", err)
		return
	}
	c.Opened++
	s.windows = append(s.windows, w)
}

// closeWindow withdraws a window. It admits until the withdrawal is answered.
func (c *churn) closeWindow(s *seat, w *device.MemoryWindow) {
	p := s.p
	err := c.World.nodes[s.node].Domains.CloseWindow(p.Domain.Slot, *w, func() {
		if s.p == p {
			s.windows = slices.DeleteFunc(s.windows, func(x *device.MemoryWindow) bool { return x == w })
		}
	})
	if err != nil && !slices.Contains(s.closing, w) {
		c.wrong("withdrawing a window: %v", err)
	}
	s.closing = append(s.closing, w)
}

func (s *seat) pdid() device.PDID {
	if s.p == nil {
		return 0
	}
	return s.p.Domain.PDID
}

// allows reports whether windows of a process admit each byte of a range.
func (c *churn) allows(p *Process, peer device.PDID, right device.Rights, va device.VA, bytes int) bool {
	s := c.seatOf(p)
	for i := range bytes {
		at := va + device.VA(i)
		if s == nil || !slices.ContainsFunc(s.windows, func(w *device.MemoryWindow) bool {
			return w.Rights&right != 0 && (w.Peer == 0 || w.Peer == peer) && at >= w.VA && at < w.VA+device.VA(w.Bytes)
		}) {
			return false
		}
	}
	return true
}

// mayWrite judges the right of a write that begins, of a transfer.
func (c *churn) mayWrite(n *Node, p *Process, m *move, a *pldma.Access) {
	peer := m.src.Domain.PDID
	delete(c.guests, guestAccess{n.id, a.ID}) // of an access that failed
	if m.read || peer == p.Domain.PDID || slices.Contains(p.Domain.Peers, peer) && !c.seatOf(p).mute {
		return
	}
	if !c.allows(p, peer, device.RightWrite, a.VA, len(a.Data)) {
		c.wrong("transfer %d is written to %d bytes at %v by leave that was withdrawn or never given", m.id, len(a.Data), a.VA)
	}
	c.Guests++
	if !slices.Contains(p.Domain.Peers, peer) { // PD_PEERS may admit a peer again meanwhile
		c.guests[guestAccess{n.id, a.ID}] = peer
	}
}

// inTime judges a write that has landed: if only a window admitted it, no withdrawal of the window
// was answered before.
func (c *churn) inTime(p *Process, a *pldma.Access) {
	k := guestAccess{p.node.id, a.ID}
	peer, guest := c.guests[k]
	delete(c.guests, k)
	if guest && c.seatOf(p) != nil && !c.allows(p, peer, device.RightWrite, a.VA, len(a.Data)) {
		c.wrong("%d bytes at %v land after the withdrawal of their window was answered", len(a.Data), a.VA)
	}
}

// mayRead judges a block that a read of another user's process takes from its source.
func (c *churn) mayRead(m *move) {
	peer := m.dst.Domain.PDID
	if !m.read || c.seatOf(m.src) == nil || peer == m.src.Domain.PDID || slices.Contains(m.src.Domain.Peers, peer) {
		return
	}
	c.Guests++
	if !c.allows(m.src, peer, device.RightRead, m.desc.Src, int(m.desc.Size)) {
		c.wrong("read %d takes a block by leave that was withdrawn or never given", m.id)
	}
}
