package r5

import (
	"slices"

	"github.com/exanet/pfd/device"
)

// Leaving reports whether no new transfers to a node are begun: it is gone, or drains.
func (fw *Firmware) Leaving(node device.NodeID) (gone, leaving bool) {
	if len(fw.others) == 0 {
		return false, false
	}
	r := fw.others[node]
	return r.gone, r.gone || r.drains
}

// hold reports whether the path of a block that is to be retransmitted does not take it. The block then waits.
func (fw *Firmware) hold(t *transaction) bool {
	p := fw.path(t.node)
	if p == nil || p.takes(t.short) {
		return false
	}
	fw.delist(t)
	t.list = listHeld
	p.held.push(fw.timed[:], t.id)
	return true
}

// resume schedules the transfers that wait for a path. The scheduler makes those wait again that still
// find it shut.
func (fw *Firmware) resume(p *path) {
	if p.full {
		return
	}
	for c := p.waiting.head; c >= 0; c = p.waiting.head {
		x := fw.channels.At(int(c))
		fw.unqueue(x)
		fw.enqueueRear(x)
	}
}

// landed counts a block that is no longer in flight.
func (fw *Firmware) landed(t *transaction) {
	p := fw.paths[t.node]
	p.flying -= int64(t.length)
	fw.resume(p)
}

// feedback adapts a path's window to the round trip of a block that is acknowledged now: from the end of
// its sending, so that neither the node's own memory nor page faults count.
func (fw *Firmware) feedback(now int64, t *transaction) {
	if (t.list == listTimeout || t.list == listFar) && t.length > 0 {
		fw.paths[t.node].trip(now, max(now-t.since, 1), t.length, int64(fw.outstanding)*device.BlockSize)
	}
}

// pace opens the paths whose time has come.
func (fw *Firmware) pace(now int64) {
	for i := 0; i < len(fw.paced); {
		p := fw.paced[i]
		if p.next > now {
			i++
			continue
		}
		p.paced = false
		fw.paced = slices.Delete(fw.paced, i, i+1)
		fw.resume(p)
	}
}

// Writes reports whether the firmware has written to a node, or was to. If it has not, LinkReady, LinkUp and
// Drain change nothing but Config.Others.
func (fw *Firmware) Writes(node device.NodeID) bool { return fw.paths[node] != nil }
