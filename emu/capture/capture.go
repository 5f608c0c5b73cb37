// Package capture keeps the packets on the links of emulated nodes, as pcapng.
package capture

import (
	"fmt"
	"sync"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/pcapng"
	"github.com/exanet/pfd/soc/wire"
)

// Bounds of a capture (ours).
const (
	room = 4 << 20 // bytes that wait to be written; what comes beyond is lost
	look = 10 * time.Millisecond
)

// link is what two nodes are joined by, an interface of the capture.
type link struct {
	from, to   device.NodeID // a packet from `from` is outbound
	seen, lost uint64
	before     uint64 // lost since the last packet that was kept
	told       uint64 // of lost, what was written
}

// Capture holds the packets of links until Copy takes them.
type Capture struct {
	// Node is the one whose links these are; All: those of all nodes.
	Node device.NodeID
	All  bool
	Snap int // bytes of each packet to keep; 0: all

	scratch [wire.MaxPacket]byte // of See's goroutine

	mu    sync.Mutex
	buf   []byte // blocks of pcapng
	links []*link
}

// See takes a frame that a node sends (emu.Engine.Tap). One goroutine at a time.
func (c *Capture) See(at int64, f *wire.Frame) {
	if !c.All && f.SrcNode != c.Node && f.DstNode != c.Node {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, direction := c.link(f)
	l := c.links[i]
	// It fails only where the function does that it calls.
	_ = wire.Cut(f, c.scratch[:0], func(packet []byte) error {
		l.seen++
		if len(c.buf)+2*wire.MaxPacket > room {
			l.lost, l.before = l.lost+1, l.before+1
			return nil
		}
		c.buf = pcapng.Packet(c.buf, i, at, packet, c.Snap, direction, l.before)
		l.before = 0
		return nil
	})
}

// link gives the interface of a frame, and its direction there. The first one has the
// node that is asked for, else the lower number, in front.
func (c *Capture) link(f *wire.Frame) (index int, direction uint32) {
	from, to, direction := f.SrcNode, f.DstNode, uint32(pcapng.Outbound)
	if c.All && from > to || !c.All && from != c.Node {
		from, to, direction = to, from, pcapng.Inbound
	}
	for i, l := range c.links {
		if l.from == from && l.to == to {
			return i, direction
		}
	}
	c.links = append(c.links, &link{from: from, to: to})
	// Beside room: there are as many as the nodes have links.
	c.buf = pcapng.Interface(c.buf, c.Snap, fmt.Sprintf("node%d-node%d", from, to))
	return len(c.links) - 1, direction
}

// take gives what waits, with the counts of the links that lost packets since.
func (c *Capture) take(spare []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.buf
	for i, l := range c.links {
		if l.lost > l.told {
			l.told = l.lost
			b = pcapng.Statistics(b, i, time.Now().UnixNano(), l.seen, l.lost)
		}
	}
	c.buf = spare[:0]
	return b
}

// Copy writes what comes, from the capture's first block on, until done closes; application
// stands in that block. It returns write's error.
func (c *Capture) Copy(done <-chan struct{}, application string, write func([]byte) error) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	out, spare := pcapng.Section(nil, application), []byte(nil)
	for last := false; ; {
		if len(out) > 0 {
			if err := write(out); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		select {
		case <-done:
			last = true
		case <-tick.C:
		}
		out, spare = c.take(spare), out
	}
}
