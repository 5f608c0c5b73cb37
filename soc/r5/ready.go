package r5

import (
	"slices"

	"github.com/exanet/pfd/device"
)

// LinkReady reports that the link on the way to a node takes blocks, or is full.
func (fw *Firmware) LinkReady(node device.NodeID, ready bool) {
	p := fw.paths[node]
	if p == nil && ready {
		return
	}
	if p == nil {
		p = newPath()
		fw.paths[node] = p
	}
	p.full = !ready
	fw.resume(p)
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
	if t.list == listTimeout && t.length > 0 {
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

// resetPaths forgets all blocks and transfers. A full link remains full.
func (fw *Firmware) resetPaths() {
	fw.paced = nil
	for _, p := range fw.paths {
		full := p.full
		*p = *newPath()
		p.full = full
	}
}
