package daemon

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/pcapng"
	"github.com/exanet/pfd/internal/version"
	"github.com/exanet/pfd/soc/wire"
)

// Bounds of a capture (ours). One capture is open at a time.
const (
	captureRoom = 4 << 20 // bytes that wait for the client; what comes beyond is lost
	captureLook = 10 * time.Millisecond
)

// link is what two nodes are joined by, an interface of the capture.
type link struct {
	from, to   device.NodeID // a packet from `from` is outbound
	seen, lost uint64
	before     uint64 // lost since the last packet that was kept
	told       uint64 // of lost, what the client was told
}

// capture holds the packets of links until the client takes them.
type capture struct {
	node device.NodeID
	all  bool // of all nodes
	snap int

	scratch []byte // of the owning goroutine

	mu    sync.Mutex
	buf   []byte // blocks of pcapng
	links []*link
}

// see takes a frame that a node sends. On the owning goroutine.
func (c *capture) see(at int64, f *wire.Frame) {
	if !c.all && f.SrcNode != c.node && f.DstNode != c.node {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, direction := c.link(f)
	l := c.links[i]
	// It fails only where the function does that it calls.
	_ = wire.Cut(f, c.scratch, func(packet []byte) error {
		l.seen++
		if len(c.buf)+2*wire.MaxPacket > captureRoom {
			l.lost, l.before = l.lost+1, l.before+1
			return nil
		}
		c.buf = pcapng.Packet(c.buf, i, at, packet, c.snap, direction, l.before)
		l.before = 0
		return nil
	})
}

// link gives the interface of a frame, and its direction there. The first one has the
// node that is asked for, else the lower number, in front.
func (c *capture) link(f *wire.Frame) (index int, direction uint32) {
	from, to, direction := f.SrcNode, f.DstNode, uint32(pcapng.Outbound)
	if c.all && from > to || !c.all && from != c.node {
		from, to, direction = to, from, pcapng.Inbound
	}
	for i, l := range c.links {
		if l.from == from && l.to == to {
			return i, direction
		}
	}
	c.links = append(c.links, &link{from: from, to: to})
	// Beside captureRoom: there are as many as the nodes have links.
	c.buf = pcapng.Interface(c.buf, c.snap, fmt.Sprintf("node%d-node%d", from, to))
	return len(c.links) - 1, direction
}

// take gives what waits, with the counts of the links that lost packets since.
func (c *capture) take(spare []byte) []byte {
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

// serveCapture answers with the packets of the nodes' links, until the client leaves or
// pfd ends. A client that does not read for controlWriteTime is dropped.
func (d *Daemon) serveCapture(rw http.ResponseWriter, r *http.Request, q *query) {
	m, ok := d.machine.(tapper)
	switch {
	case !q.peer.all:
		reply(rw, nil, &failure{http.StatusForbidden, control.CodeForbidden,
			"links carry the bytes of all users: ask with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as"})
		return
	case !ok:
		reply(rw, nil, &failure{http.StatusNotImplemented, control.CodeNotSupported,
			"the links of a device elsewhere do not pass through pfd: capture at a pfd with --device emu"})
		return
	}
	c := &capture{all: q.node == control.AllNodes, snap: q.snap, scratch: make([]byte, 0, wire.MaxPacket)}
	if !c.all {
		c.node = d.nodes[q.node].id
	}
	if !d.capturing.CompareAndSwap(false, true) {
		reply(rw, nil, &failure{http.StatusServiceUnavailable, control.CodeBusy, "a capture is open already: end that one first"})
		return
	}
	defer d.capturing.Store(false)
	m.Tap(c.see)
	defer m.Tap(nil)
	rc := http.NewResponseController(rw)
	rw.Header().Set("Content-Type", "application/x-pcapng")
	tick := time.NewTicker(captureLook)
	defer tick.Stop()
	d.log.Info("capture", "node", q.node, logs.KeyUID, q.peer.uid)
	out, spare := pcapng.Section(nil, "pfd "+version.String()), []byte(nil)
	for {
		select {
		case <-r.Context().Done():
			return
		case <-d.leaving:
			return
		default:
		}
		if len(out) == 0 {
			<-tick.C
		} else if rc.SetWriteDeadline(time.Now().Add(controlWriteTime)) != nil {
			return
		} else if _, err := rw.Write(out); err != nil || rc.Flush() != nil {
			return
		}
		out, spare = c.take(spare), out
	}
}
