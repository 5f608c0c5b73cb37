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

// Limits of a capture. Values below are defined by this project.
const (
	room = 4 << 20 // bytes that wait to be written; packets beyond are lost
	look = 10 * time.Millisecond
)

// link is the connection of two nodes, or of a node to another host, an interface of the capture.
type link struct {
	from       device.NodeID // a packet from it is outbound
	to         device.NodeID // 0 if host is not ""
	host       string
	seen, lost uint64
	before     uint64 // lost since the last packet that was kept
	told       uint64 // of lost, those already reported
}

// Capture holds the packets of links until Copy takes them.
type Capture struct {
	// Node is the node whose links are captured; All: those of all nodes.
	Node device.NodeID
	All  bool
	Snap int // bytes of each packet to keep; 0: all
	// Host, if not nil, returns the name of the host of a node that is another host's, else "".
	Host func(device.NodeID) string

	scratch [wire.MaxPacket]byte // of See's goroutine

	mu    sync.Mutex
	buf   []byte // blocks of pcapng
	links []*link
}

// See records a frame that a node sends (emu.Engine.Tap). Only one goroutine at a time may call it.
func (c *Capture) See(at int64, f *wire.Frame) {
	if !c.All && f.SrcNode != c.Node && f.DstNode != c.Node {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, direction := c.link(f)
	l := c.links[i]
	// Cut fails only if its function does.
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

// link returns the interface of a frame, and the frame's direction there. An interface begins with the
// captured node or, if all are captured, with the lower number; one to another host with this host's node.
func (c *Capture) link(f *wire.Frame) (index int, direction uint32) {
	var host string
	from, to, direction := f.SrcNode, f.DstNode, uint32(pcapng.Outbound)
	swap := c.All && from > to || !c.All && from != c.Node
	if c.Host != nil {
		if host = c.Host(f.DstNode); host != "" {
			swap = false
		} else if host = c.Host(f.SrcNode); host != "" {
			swap = true
		}
	}
	if swap {
		from, to, direction = to, from, pcapng.Inbound
	}
	if host != "" {
		to = 0
	}
	for i, l := range c.links {
		if l.from == from && l.to == to && l.host == host {
			return i, direction
		}
	}
	c.links = append(c.links, &link{from: from, to: to, host: host})
	name := host
	if host == "" {
		name = fmt.Sprint("node", to)
	}
	// Not limited by room: there are as many interfaces as links.
	c.buf = pcapng.Interface(c.buf, c.Snap, fmt.Sprintf("node%d-%s", from, name))
	return len(c.links) - 1, direction
}

// take returns the waiting blocks, with the counts of the links that have lost packets since.
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

// Copy writes the capture from its first block on, until done is closed. The first block names
// application. Copy returns the error of write.
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
