package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/exanet/pfd/internal/sim/topology"
	"github.com/exanet/pfd/soc/wire"
)

// queueDepth is the number of frames that an output of a node has room for (defined by this project).
const queueDepth = 16

// network carries frames over a topology: each node passes on those for others. An output that has no
// room makes the nodes before it wait, and in the end the frames' own nodes.
type network struct {
	topology.Network
	w       *World
	outputs []output // one for each link
	depth   int      // frames that a queue has room for
	watch   func(link, queued, waiting int)
}

// flight is a frame on its way.
type flight struct {
	frame *wire.Frame
	order uint64
	late  int64 // ns that the last hop takes longer
}

// output is the output of a node to one link.
type output struct {
	queues   [topology.VCs][]flight
	coming   [topology.VCs]int // places that are kept for frames on the link before
	own      [topology.VCs][]flight
	blocked  [topology.VCs][]int32 // outputs of other nodes that wait for room in the queue
	paused   [topology.VCs][]int32 // nodes to which the node itself issues no blocks (soc.LinkReady)
	busy     bool
	cut      bool  // every frame is lost
	last     int   // virtual channel that was served last
	stopped  int64 // since when no frame may go on, 0: one may
	since    int64 // since when the node itself pauses, 0: it does not
	Link     LinkUse
	wire     flight // the frame on the wire
	onward   int32  // the output that has kept a place for it, -1: it has arrived
	onwardVC int8
}

// LinkUse counts the frames that a link of a topology has carried.
type LinkUse struct {
	Frames, Bytes uint64
	Busy          int64 // ns
	// Stopped is how long frames waited while the next node had no room, ns.
	Stopped int64
	Highest int // most frames that waited in one queue
	// Waiting is the most frames of the node itself that waited for room in the queue.
	Waiting int
	// Paused is how long the node itself issued no blocks to some nodes because of that, ns.
	Paused int64
}

func newNetwork(w *World, t *topology.Network) *network {
	return &network{Network: *t, w: w, outputs: make([]output, len(t.Links)), depth: queueDepth}
}

// Links returns what each link of the topology has carried, nil if the world has none.
func (w *World) Links() (list []LinkUse) {
	if w.net == nil {
		return nil
	}
	for i := range w.net.outputs {
		list = append(list, w.net.outputs[i].Link)
	}
	return list
}

// WatchQueues makes f receive the number of frames in a link's queue, and of the node itself that wait for
// room there, after each change.
func (w *World) WatchQueues(f func(link, queued, waiting int)) {
	if w.net != nil {
		w.net.watch = f
	}
}

func (n *network) changed(link int) {
	if n.watch != nil {
		o := &n.outputs[link]
		n.watch(link, len(o.queues[0])+len(o.queues[1]), len(o.own[0])+len(o.own[1]))
	}
}

// send takes a frame of node from, which has another node as its destination.
func (n *network) send(from, to int, f flight) {
	link, vc := n.Next(from, to)
	o := &n.outputs[link]
	o.own[vc] = append(o.own[vc], f)
	n.admit(link, vc)
	if waiting := len(o.own[vc]); waiting > 0 {
		o.Link.Waiting = max(o.Link.Waiting, waiting)
		n.pause(from, o, vc, int32(to))
		n.changed(link)
	}
	n.try(link)
}

// room reports whether a queue has room for one more frame.
func (n *network) room(o *output, vc int) bool { return len(o.queues[vc])+o.coming[vc] < n.depth }

// admit moves frames of the node itself into the queue while it has room. When none is left, the node
// issues blocks again.
func (n *network) admit(link, vc int) {
	o := &n.outputs[link]
	for len(o.own[vc]) > 0 && n.room(o, vc) {
		n.put(link, vc, o.own[vc][0])
		o.own[vc] = o.own[vc][1:]
	}
	if len(o.own[vc]) > 0 || len(o.paused[vc]) == 0 {
		return
	}
	for _, to := range o.paused[vc] {
		n.tell(n.Network.Links[link].From, to, wire.ReadyAll)
	}
	o.paused[vc] = o.paused[vc][:0]
	n.resumed(o)
}

// pause makes a node issue no blocks to another one, since frames of its own wait for room.
func (n *network) pause(from int, o *output, vc int, to int32) {
	if slices.Contains(o.paused[vc], to) {
		return
	}
	if o.since == 0 {
		o.since = n.w.now
	}
	o.paused[vc] = append(o.paused[vc], to)
	n.tell(from, to, wire.NotReady)
}

// resumed counts a pause that may have ended.
func (n *network) resumed(o *output) {
	if len(o.paused[0])+len(o.paused[1]) == 0 {
		o.Link.Paused += n.w.now - o.since
		o.since = 0
	}
}

// tell tells a node whether its link on the way to another one takes blocks.
func (n *network) tell(node int, to int32, ready wire.Ready) {
	e := n.w.events.push(n.w.now)
	e.kind, e.node, e.number, e.ready = linkReady, n.w.nodes[node], uint64(to), ready
}

// powered forgets what a node was told: it has a new machine.
func (n *network) powered(node int) {
	for i := range n.outputs {
		if o := &n.outputs[i]; n.Network.Links[i].From == node && o.since != 0 {
			o.paused = [topology.VCs][]int32{}
			n.resumed(o)
		}
	}
}

func (n *network) put(link, vc int, f flight) {
	o := &n.outputs[link]
	o.queues[vc] = append(o.queues[vc], f)
	o.Link.Highest = max(o.Link.Highest, len(o.queues[vc]))
	n.changed(link)
}

// try begins to send a frame, if the wire is free and one may go on. The virtual channels take turns.
func (n *network) try(link int) {
	o, l := &n.outputs[link], &n.Network.Links[link]
	if o.busy {
		return
	}
	for k := range topology.VCs {
		vc := (o.last + 1 + k) % topology.VCs
		if len(o.queues[vc]) == 0 {
			continue
		}
		f := o.queues[vc][0]
		onward, at := -1, 0
		if to := int(f.frame.DstNode); to != l.To {
			onward, at = n.Next(l.To, to)
			next := &n.outputs[onward]
			if !n.room(next, at) {
				next.wait(at, int32(link))
				if o.stopped == 0 {
					o.stopped = n.w.now
				}
				continue
			}
			next.coming[at]++
		}
		if o.stopped != 0 {
			o.Link.Stopped += n.w.now - o.stopped
			o.stopped = 0
		}
		bytes := int64(len(f.frame.Payload)) + wireBytes
		d := (bytes*8*1e9 + l.Rate - 1) / l.Rate
		o.Link.Frames++
		o.Link.Bytes += uint64(bytes)
		o.Link.Busy += d
		o.busy, o.last, o.wire, o.onward, o.onwardVC = true, vc, f, int32(onward), int8(at)
		o.queues[vc] = append(o.queues[vc][:0], o.queues[vc][1:]...)
		n.changed(link)
		e := n.w.events.push(n.w.now + d)
		e.kind, e.number = passed, uint64(link)
		n.admit(link, vc)
		waiting := o.blocked[vc]
		o.blocked[vc] = nil
		for _, other := range waiting {
			n.try(int(other))
		}
		return
	}
}

// audit checks the queues: none has more frames than its depth, and if nothing is on its way all are empty.
func (n *network) audit(quiet bool) error {
	for i := range n.outputs {
		o := &n.outputs[i]
		for vc := range o.queues {
			queued := len(o.queues[vc]) + o.coming[vc]
			if queued > n.depth || o.Link.Highest > n.depth || o.coming[vc] < 0 || quiet && (o.busy || queued+len(o.own[vc])+len(o.blocked[vc])+len(o.paused[vc]) > 0) {
				return fmt.Errorf("%w: link %d to %d has %d frames queued and %d to come, and %d wait", errNetwork, n.Network.Links[i].From, n.Network.Links[i].To,
					len(o.queues[vc]), o.coming[vc], len(o.own[vc]))
			}
		}
	}
	return nil
}

var errNetwork = errors.New("the network's audit")

// Audit checks the network of a topology. quiet: nothing should be on its way.
func (w *World) Audit(quiet bool) error {
	if w.net == nil {
		return nil
	}
	return w.net.audit(quiet)
}

// wait makes output other try again when a queue of o has room.
func (o *output) wait(vc int, other int32) {
	for _, b := range o.blocked[vc] {
		if b == other {
			return
		}
	}
	o.blocked[vc] = append(o.blocked[vc], other)
}

// wireBytes is the size of a frame's headers on a link, in bytes (package link counts the same).
const wireBytes = 64

// passed: the last bit of a frame has left over a link. It arrives after the link's latency.
func (n *network) passed(link int) {
	o, l := &n.outputs[link], &n.Network.Links[link]
	f := o.wire
	o.busy, o.wire = false, flight{}
	switch {
	case o.cut:
		n.lost(o, f.frame)
	case o.onward < 0:
		n.w.arrive(n.w.now+l.Hop+f.late, l.To, f.frame, f.order)
	default:
		e := n.w.events.push(n.w.now + l.Hop)
		e.kind, e.frame, e.number = hopped, f.frame, f.order
		e.hop = hop{link: o.onward, vc: o.onwardVC, late: f.late}
	}
	n.try(link)
}

// lost: a link has lost a frame. The outputs that waited for the place that was kept for it try again.
func (n *network) lost(o *output, f *wire.Frame) {
	n.w.pool.Put(f)
	if o.onward < 0 {
		return
	}
	next := &n.outputs[o.onward]
	next.coming[o.onwardVC]--
	n.admit(int(o.onward), int(o.onwardVC))
	n.try(int(o.onward))
	waiting := next.blocked[o.onwardVC]
	next.blocked[o.onwardVC] = nil
	for _, other := range waiting {
		n.try(int(other))
	}
}

// hop is where a frame goes on.
type hop struct {
	link int32
	vc   int8
	late int64
}

// hopped: a frame has reached a node that passes it on.
func (n *network) hopped(h hop, f *wire.Frame, order uint64) {
	o := &n.outputs[h.link]
	o.coming[h.vc]--
	n.put(int(h.link), int(h.vc), flight{f, order, h.late})
	n.try(int(h.link))
}
