package r5

import (
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// admits reports whether src may read from domain d (spec/hardware.md 3).
func (d *domain) admits(src device.PDID) bool {
	if src == d.pdid {
		return true
	}
	for _, p := range d.peers {
		if p != 0 && p == src {
			return true
		}
	}
	return false
}

// admits reports whether a request's reader may read its source: it may reach the domain, or a
// memory window admits it.
func (fw *Firmware) admits(slot int, m *mailbox.ReadRequest) bool {
	return fw.domains[slot].admits(m.PDID) ||
		fw.cfg.Windows != nil && fw.cfg.Windows[slot].Admits(m.PDID, device.RightRead, m.Src, uint64(m.Size))
}

// mayHave reports whether a requester may take one of the free places. has is the set of
// requesters that have a place. None is reserved for PDIDs that only a window admits.
func (d *domain) mayHave(src device.PDID, free int, has uint32) bool {
	return free > 0 && (d.admits(src) && has&d.bit(src) == 0 || free > d.without(has))
}

// without returns the number of PDIDs that the domain admits and that are not in has.
func (d *domain) without(has uint32) int {
	all := d.bit(d.pdid)
	for _, p := range d.peers {
		if p != 0 {
			all |= d.bit(p)
		}
	}
	return bits.OnesCount32(all &^ has)
}

// bit returns the bit for a PDID in a set of admitted PDIDs: bit 0 for the domain itself, then
// its peers, then one for all others.
func (d *domain) bit(p device.PDID) uint32 {
	if p == d.pdid {
		return 1
	}
	if i := slices.Index(d.peers[:], p); i >= 0 {
		return 2 << i
	}
	return 2 << len(d.peers)
}

// readers returns the set of PDIDs that hold a read channel of a slot.
func (fw *Firmware) readers(slot int) (has uint32) {
	d := &fw.domains[slot]
	for busy := d.reads.busy; busy != 0; busy &= busy - 1 {
		c := slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy)
		has |= d.bit(fw.channels.At(int(c)).request.m.PDID)
	}
	return has
}

// mayServe reports whether a read of a requester may take one of a slot's channels. Each PDID
// that the domain admits has a channel or has one reserved (defined by this project), because
// unserved faults can hold a channel for long.
func (fw *Firmware) mayServe(slot int, src device.PDID) bool {
	d := &fw.domains[slot]
	free := readChannels - bits.OnesCount32(d.reads.busy)
	return free > len(d.peers)+1 || d.mayHave(src, free, fw.readers(slot))
}

// mayWait reports the same for a place in the queue.
func (fw *Firmware) mayWait(slot int, src device.PDID) bool {
	d, has := &fw.domains[slot], uint32(0)
	free := maxPending - d.reads.level
	if free > len(d.peers)+1 {
		return true
	}
	for i := range d.reads.level {
		has |= d.bit(d.reads.at(i).m.PDID)
	}
	return d.mayHave(src, free, has)
}

// serve assigns a free read channel to a request.
func (fw *Firmware) serve(slot int, r *request) {
	q := &fw.domains[slot].reads
	ch := bits.TrailingZeros32(^q.busy)
	q.busy |= 1 << ch
	c := int16(slot*device.ChannelsPerSlot + device.WriteChannels + ch)
	d := r.descriptor()
	x := fw.begin(c, &d)
	x.isRead, x.request = true, *r
	fw.out = append(fw.out, Command{Kind: Describe, Slot: x.slot, Channel: uint8(device.WriteChannels + ch), Descriptor: d})
	fw.update(x, device.DoneReadOngoing)
	fw.enqueue(x)
}

// serveWaiting serves the waiting requests that may have a channel, in order.
func (fw *Firmware) serveWaiting(slot int) {
	q := &fw.domains[slot].reads
	for i := 0; i < q.level && q.busy != ^uint32(0); {
		if r := *q.at(i); fw.mayServe(slot, r.m.PDID) {
			q.drop(i)
			fw.serve(slot, &r)
		} else {
			i++
		}
	}
}

// readOver answers a failed read, frees its channel and serves the next waiting request.
func (fw *Firmware) readOver(x *transfer) {
	slot := int(x.slot)
	q := &fw.domains[slot].reads
	if x.failing {
		fw.reply(&x.request.from, codeOf(x.status), x.status)
		q.failed[q.next] = failure{x.request, x.status}
		q.next = (q.next + 1) % len(q.failed)
	} else {
		q.served[q.lastDone] = x.request
		q.lastDone = (q.lastDone + 1) % len(q.served)
	}
	q.busy &^= 1 << (x.channel%device.ChannelsPerSlot - device.WriteChannels)
	fw.serveWaiting(slot)
}

// codeOf returns the code of an answer: a status without a code of its own has the reserved one.
func codeOf(status uint8) device.Code {
	if status > uint8(device.CodeBufferFull) {
		return device.CodeReserved
	}
	return device.Code(status)
}

// refuseWaiting answers the waiting requests of a slot that is being disabled.
func (fw *Firmware) refuseWaiting(slot int) {
	q := &fw.domains[slot].reads
	for ; q.level > 0; q.level-- {
		fw.reply(&q.at(0).from, device.CodeReserved, device.StatusGone)
		q.head = (q.head + 1) % maxPending
	}
}

// answer ends a request at once.
func (fw *Firmware) answer(to *requester, code device.Code, status uint8) {
	fw.settled++
	fw.reply(to, code, status)
}

// reply tells a requester that its read was refused (status 0: request it again) or has failed.
// The status is in the field where an acknowledgement has its sequence number (defined by this
// project), since not all statuses have a code.
func (fw *Firmware) reply(to *requester, code device.Code, status uint8) {
	fw.out = append(fw.out, Command{
		Kind: Answer, Node: to.node, Interface: to.iface, Generation: to.generation, Epoch: to.epoch,
		Word: mailbox.Ack{Transaction: device.TransactionID(to.tag), Code: code, Sequence: device.Sequence(status)}.Encode(),
	})
}
