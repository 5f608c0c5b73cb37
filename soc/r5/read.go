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
	maxPending   = 32 // requests of a domain that wait for a channel (ours)
	// maxServed is how many reads of a domain are remembered after their end, as
	// many as it can have served and waiting at a time (ours): a duplicate that was
	// sent while its read went on comes before so many others are over. One that
	// the network holds longer is served again, for nothing: its tag is not open.
	maxServed = readChannels + maxPending
)

// requester is who asked for a read.
type requester struct {
	node  device.NodeID
	iface uint8
	epoch uint32
	tag   uint16
	// generation of the domain that the packetizer belonged to: the next domain
	// there may use the tag for another read.
	generation device.Generation
}

// request is a read request that waits for a channel.
type request struct {
	from requester
	m    mailbox.ReadRequest
}

// readQueue is a domain's read channels and the requests that wait for one, in
// their order. It is apart from all acknowledgements (001 §3.6.3).
type readQueue struct {
	busy    uint32 // a bit a read channel
	pending [maxPending]request
	head    int
	level   int
	failed  [maxPending]failure // the last ones, whose answers may be lost
	next    int

	served   [maxServed]request // the last ones that were served to their end
	lastDone int
}

// failure is a read that failed: whoever asks for it again gets the same answer.
type failure struct {
	request
	status uint8
}

func (q *readQueue) at(i int) *request { return &q.pending[(q.head+i)%maxPending] }

// drop takes request i out of those that wait.
func (q *readQueue) drop(i int) {
	for ; i+1 < q.level; i++ {
		*q.at(i) = *q.at(i + 1)
	}
	q.level--
}

// Read takes a read request that packetizer iface of node src sent in its epoch;
// m.PDID and m.Generation are the wired ones. It is served, or waits; or it is refused with code 3
// where too many wait, and failed with 5 where the target does not admit the
// requester and 2 where it cannot be. A request that is being served or waits
// already, or has been served, is dropped.
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
		fw.counts[device.DoorbellDenied]++ // as a write's (ours)
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

// admits tells whether domain d may be read by src (spec/hardware.md 3).
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

// known tells whether a request of this requester and tag is being served or
// waits. With cancel it is ended: the requester does not want it any more
// (ours: a request of size 0).
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

// serve gives a request a free read channel.
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

// mayServe tells whether a read of a requester may have a channel of a slot. Each
// PDID that the domain admits has one, or one is kept for it (ours): faults that
// nobody serves hold a channel for long.
func (fw *Firmware) mayServe(slot int, src device.PDID) bool {
	d := &fw.domains[slot]
	free := readChannels - bits.OnesCount32(d.reads.busy)
	return free > len(d.peers) || d.mayHave(src, free, fw.readers(slot))
}

// readers gives who holds a read channel of a slot.
func (fw *Firmware) readers(slot int) (has uint32) {
	d := &fw.domains[slot]
	for busy := d.reads.busy; busy != 0; busy &= busy - 1 {
		c := slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy)
		has |= d.bit(fw.channels[c].request.m.PDID)
	}
	return has
}

// mayWait tells the same of a place to wait.
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

// mayHave tells whether a requester may have one of so many free places. has are
// those that have one.
func (d *domain) mayHave(src device.PDID, free int, has uint32) bool {
	return free > 0 && (has&d.bit(src) == 0 || free > d.without(has))
}

// without counts the PDIDs that the domain admits and that are not in has.
func (d *domain) without(has uint32) int {
	all := d.bit(d.pdid)
	for _, p := range d.peers {
		if p != 0 {
			all |= d.bit(p)
		}
	}
	return bits.OnesCount32(all &^ has)
}

// bit stands for a PDID in a set of those that the domain admits: 0 is its own, then
// come its peers, and one for those that it admits no more.
func (d *domain) bit(p device.PDID) uint32 {
	if p == d.pdid {
		return 1
	}
	if i := slices.Index(d.peers[:], p); i >= 0 {
		return 2 << i
	}
	return 2 << len(d.peers)
}

// serveWaiting serves the requests that wait and may have a channel, in their order.
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

// readOver answers a read that failed, frees its channel and serves the next
// request that waits.
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

// codeOf gives the code of an answer: statuses beyond the codes have the
// reserved one.
func codeOf(status uint8) device.Code {
	if status > uint8(device.CodeBufferFull) {
		return device.CodeReserved
	}
	return device.Code(status)
}

// refuseWaiting answers the requests that wait at a slot that goes.
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

// reply tells a requester that its read is refused (status 0: to be asked for
// again) or has failed. The status stands where an acknowledgement has its
// sequence number (ours), since not all statuses have a code.
func (fw *Firmware) reply(to *requester, code device.Code, status uint8) {
	fw.out = append(fw.out, Command{
		Kind: Answer, Node: to.node, Interface: to.iface, Generation: to.generation, Epoch: to.epoch,
		Word: mailbox.Ack{Transaction: device.TransactionID(to.tag), Code: code, Sequence: device.Sequence(status)}.Encode(),
	})
}
