package r5

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// LinkReady reports which blocks the link on the way to a node takes. Others are neither issued to the node
// nor retransmitted: nothing counts as an attempt. Blocks whose retransmission was due meanwhile are
// retransmitted as soon as it takes them. A node that was gone is back.
func (fw *Firmware) LinkReady(node device.NodeID, ready wire.Ready) {
	fw.change(node, func(r *reach) {
		r.full, r.busy, r.gone = ready == wire.NotReady, ready < wire.ReadyAll, r.gone && ready == wire.NotReady
	})
	p := fw.paths[node]
	if p == nil || p.full {
		return
	}
	for id := p.held.head; id >= 0; {
		t := fw.tx.At(int(id))
		id = fw.timed[id].next
		if p.takes(t.short) {
			fw.delist(t)
			fw.retransmit(fw.now, t)
		}
	}
	fw.resume(p)
}

// LinkUp reports that the link on the way to a node is a new one: frames on the former one may be lost, such
// as requests for retransmission. All blocks that wait for an answer from the node are retransmitted, which
// counts as no attempt.
func (fw *Firmware) LinkUp(node device.NodeID) {
	p := fw.paths[node]
	if p == nil {
		return
	}
	p.short.doubled, p.long.doubled = 0, 0
	for _, t := range fw.tx.All() {
		if t.state == stateFree || t.node != node {
			continue
		}
		t.timed = false
		if !t.atSource && t.sending == 0 {
			fw.retransmit(fw.now, t)
		}
	}
}

// Gone reports that a node is gone. Transfers to it end with status 10, as do those that are begun before
// LinkReady reports that it is back; its read requests are forgotten.
func (fw *Firmware) Gone(node device.NodeID) {
	fw.change(node, func(r *reach) { r.gone = true })
	for c := range device.Channels {
		if x := fw.channels.Find(c); x != nil && x.live && x.desc.DstNode == node {
			fw.fail(x, device.StatusGone)
		}
	}
	for slot := range fw.domains {
		q := &fw.domains[slot].reads
		for i := 0; i < q.level; {
			if q.at(i).from.node == node {
				q.drop(i)
			} else {
				i++
			}
		}
	}
}

// Drain makes the firmware refuse new transfers to a node with status 10, or take them again.
func (fw *Firmware) Drain(node device.NodeID, on bool) {
	fw.change(node, func(r *reach) { r.drains = on })
}

// Underway counts the transfers to the nodes first to last that run, and their read requests that wait.
func (fw *Firmware) Underway(first, last device.NodeID) (sum int) {
	in := func(n device.NodeID) bool { return first <= n && n <= last }
	for _, x := range fw.channels.All() {
		if x.live && in(x.desc.DstNode) {
			sum++
		}
	}
	for slot := range fw.domains {
		q := &fw.domains[slot].reads
		for i := range q.level {
			if in(q.at(i).from.node) {
				sum++
			}
		}
	}
	return sum
}
