package r5

import (
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Reads (spec/firmware.md "Read path"; 001 §3.6): the firmware of the target
// serves a request as a write to the initiator's memory.
const (
	readChannels = device.ChannelsPerSlot - device.WriteChannels
	maxPending   = 32 // requests of a domain that wait for a channel (defined by this project)
	// maxServed is how many completed reads a domain remembers: as many as can be served and
	// waiting at a time (defined by this project). A duplicate that was sent during its read
	// arrives before that many others have ended. If the network delays it longer, it is served
	// again to no effect: its tag is no longer open.
	maxServed = readChannels + maxPending
)

// requester identifies the sender of a read request.
type requester struct {
	node  device.NodeID
	iface uint8
	epoch uint32
	tag   uint16
	// generation is that of the domain that owned the packetizer: the slot's next domain may use
	// the tag for another read.
	generation device.Generation
}

// request is a read request waiting for a channel.
type request struct {
	from requester
	m    mailbox.ReadRequest
}

// readQueue is a domain's read channels and the requests that wait for one, in order. It is
// separate from all acknowledgements (001 §3.6.3).
type readQueue struct {
	busy    uint32 // one bit per read channel
	pending [maxPending]request
	head    int
	level   int
	failed  [maxPending]failure // the last failed reads, whose answers may be lost
	next    int

	served   [maxServed]request // the last reads that completed
	lastDone int
}

// failure is a failed read: a repeated request gets the same answer.
type failure struct {
	request
	status uint8
}

func (q *readQueue) at(i int) *request { return &q.pending[(q.head+i)%maxPending] }

// drop removes waiting request i.
func (q *readQueue) drop(i int) {
	for ; i+1 < q.level; i++ {
		*q.at(i) = *q.at(i + 1)
	}
	q.level--
}

// Read handles a read request that packetizer iface of node src sent in its epoch; m.PDID and
// m.Generation are the wired values. The request is served or waits. It is refused with code 3 if
// too many wait, and failed with status 5 if the target does not admit the requester, or 2 if the
// request is invalid. A request that is already being served, waiting or served is dropped.
func (fw *Firmware) Read(src device.NodeID, iface uint8, epoch uint32, m mailbox.ReadRequest) {
	r := request{requester{src, iface, epoch, m.Tag, m.Generation}, m}
	fw.asked++
	pdid := m.Target
	if pdid == 0 {
		pdid = m.PDID
	}
	slot := -1
	for i := range fw.domains {
		if d := &fw.domains[i]; d.enabled && d.pdid == pdid && d.generation == m.TargetGeneration {
			slot = i
		}
	}
	if slot < 0 || !fw.domains[slot].admits(m.PDID) {
		fw.counts[device.DoorbellDenied]++ // as for a write (defined by this project)
		fw.answer(&r.from, device.CodeDomain, device.StatusDomain)
		return
	}
	q := &fw.domains[slot].reads
	if fw.known(slot, &r.from, m.Size == 0) || slices.Contains(q.served[:], r) {
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
	switch {
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

// known reports whether a request with this requester and tag is being served or waiting. With
// cancel the request is ended: the requester no longer needs it (a request of size 0; defined by
// this project).
func (fw *Firmware) known(slot int, from *requester, cancel bool) bool {
	q := &fw.domains[slot].reads
	for busy := q.busy; busy != 0; busy &= busy - 1 {
		c := int16(slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy))
		if fw.channels[c].request.from == *from {
			if cancel && !fw.channels[c].failing {
				fw.fail(c, device.StatusAborted)
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

func (r *request) descriptor() device.Descriptor {
	return device.Descriptor{
		Src: r.m.Src, Dst: r.m.Dst, Notify: r.m.Notify, First: r.m.First, Last: r.m.Last, Size: r.m.Size,
		DstNode: r.from.node, DstPDID: r.m.PDID, DstGeneration: r.from.generation,
	}
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
	fw.update(c, device.DoneReadOngoing)
	fw.enqueue(c)
}

// mayServe reports whether a read of a requester may take one of a slot's channels. Each PDID
// that the domain admits has a channel or has one reserved (defined by this project), because
// unserved faults can hold a channel for long.
func (fw *Firmware) mayServe(slot int, src device.PDID) bool {
	d := &fw.domains[slot]
	free := readChannels - bits.OnesCount32(d.reads.busy)
	return free > len(d.peers) || d.mayHave(src, free, fw.readers(slot))
}

// readers returns the set of PDIDs that hold a read channel of a slot.
func (fw *Firmware) readers(slot int) (has uint32) {
	d := &fw.domains[slot]
	for busy := d.reads.busy; busy != 0; busy &= busy - 1 {
		c := slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy)
		has |= d.bit(fw.channels[c].request.m.PDID)
	}
	return has
}

// mayWait reports the same for a place in the queue.
func (fw *Firmware) mayWait(slot int, src device.PDID) bool {
	d, has := &fw.domains[slot], uint32(0)
	free := maxPending - d.reads.level
	if free > len(d.peers) {
		return true
	}
	for i := range d.reads.level {
		has |= d.bit(d.reads.at(i).m.PDID)
	}
	return d.mayHave(src, free, has)
}

// mayHave reports whether a requester may take one of the free places. has is the set of
// requesters that have a place.
func (d *domain) mayHave(src device.PDID, free int, has uint32) bool {
	return free > 0 && (has&d.bit(src) == 0 || free > d.without(has))
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
// its peers, then one for PDIDs that it no longer admits.
func (d *domain) bit(p device.PDID) uint32 {
	if p == d.pdid {
		return 1
	}
	if i := slices.Index(d.peers[:], p); i >= 0 {
		return 2 << i
	}
	return 2 << len(d.peers)
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
func (fw *Firmware) readOver(c int16) {
	x := &fw.channels[c]
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
	q.busy &^= 1 << (c%device.ChannelsPerSlot - device.WriteChannels)
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
