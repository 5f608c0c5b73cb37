package r5

import (
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Read handles a read request that packetizer iface of node src sent in its epoch; m.PDID and
// m.Generation are the wired values. The request is served or waits. It is refused with code 3 if
// too many wait, and failed with status 5 if the target does not admit the requester, or 2 if the
// request is invalid. A request that is already being served, waiting or served is dropped.
func (fw *Firmware) Read(src device.NodeID, iface uint8, epoch uint32, m mailbox.ReadRequest) {
	fw.asked++
	if m.Target == 0 {
		m.Target = m.PDID // as the one does that its node sends again at LinkUp
	}
	r := request{requester{src, iface, epoch, m.Tag, m.Generation}, m}
	slot := -1
	for i := range fw.domains {
		if d := &fw.domains[i]; d.enabled && d.pdid == m.Target && d.generation == m.TargetGeneration {
			slot = i
		}
	}
	if slot < 0 || !fw.admits(slot, &m) {
		fw.counts[device.DoorbellDenied]++ // as for a write (defined by this project)
		fw.answer(&r.from, device.CodeDomain, device.StatusDomain)
		return
	}
	q := &fw.domains[slot].reads
	q.open()
	if fw.known(slot, &r.from, m.Size == 0) || slices.Contains(q.served, r) {
		fw.settled++
		return
	}
	for i := range q.failed {
		if f := &q.failed[i]; f.status != 0 && f.request == r {
			fw.answer(&r.from, codeOf(f.status), f.status)
			return
		}
	}
	d := r.descriptor()
	if !fw.valid(&d) || d.Notify == 0 {
		fw.counts[device.DoorbellDenied]++
		fw.answer(&r.from, device.CodeDecode, device.StatusDecode)
		return
	}
	switch _, leaving := fw.Leaving(src); {
	case leaving:
		fw.answer(&r.from, device.CodeReserved, device.StatusGone)
	case fw.mayServe(slot, m.PDID):
		fw.settled++
		fw.serve(slot, &r)
	case fw.mayWait(slot, m.PDID):
		*q.at(q.level) = r
		q.level++
		fw.settled++ // counted as waiting from here on
	default:
		fw.answer(&r.from, device.CodeNoContext, 0)
	}
}

// known reports whether a request with this requester and tag is being served or waiting. With
// cancel the request is ended: the requester no longer needs it (a request of size 0; defined by
// this project).
func (fw *Firmware) known(slot int, from *requester, cancel bool) bool {
	q := &fw.domains[slot].reads
	for busy := q.busy; busy != 0; busy &= busy - 1 {
		x := fw.channels.At(slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy))
		if x.request.from == *from {
			if cancel && !x.failing {
				fw.fail(x, device.StatusAborted)
			}
			return true
		}
	}
	for i := range q.level {
		if q.at(i).from != *from {
			continue
		}
		if cancel {
			q.drop(i)
			fw.reply(from, device.CodeReserved, device.StatusAborted)
		}
		return true
	}
	return false
}
