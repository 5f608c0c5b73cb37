// Package r5 is the RDMA firmware of a node's R5 core as a pure state machine: doorbells,
// acknowledgements, retransmission requests and the time go in, and commands come out
// (spec/firmware.md; 001 chapters 3 and 4, 000 §3.2.2, 002 §IV).
//
// docs/papers.md lists the papers that comments cite by number.
package r5

import (
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/sparse"
	"github.com/exanet/pfd/soc/window"
)

// New returns a firmware that counts in counts.
func New(cfg Config, counts *[device.Counters]uint64) *Firmware {
	if cfg.IDs <= 0 || cfg.IDs > device.Transactions {
		cfg.IDs = device.Transactions
	}
	fw := &Firmware{cfg: cfg, counts: counts, seq: make(map[device.NodeID]*sparse.Table[numbers]), others: cfg.Others}
	if fw.others == nil {
		fw.others = Others{}
	}
	fw.Reset()
	fw.SetTimeout(device.TimeoutReset)
	fw.SetGuard(device.GuardReset)
	fw.SetOutstanding(device.OutstandingReset)
	return fw
}

// Reset drops every transaction and transfer and forgets the domains. The caller must have
// performed all earlier commands.
func (fw *Firmware) Reset() {
	fw.domains = [device.Slots]domain{}
	fw.reserve = keptIDs * device.Slots
	fw.tx.Clear()
	fw.free = tickets{}
	for i := range fw.cfg.IDs {
		fw.free.put(int16(i))
	}
	fw.ticking = 0
	for i := range fw.timers {
		fw.timers[i] = list{-1, -1}
	}
	fw.channels.Clear()
	fw.run.reset()
	fw.paths, fw.paced = map[device.NodeID]*path{}, nil // the states of links and nodes remain
	fw.out = fw.out[:0]
}

// SetPeers follows PD_PEERS: the PDIDs whose reads a slot admits. Reads of other PDIDs end with
// status 5.
func (fw *Firmware) SetPeers(slot int, peers *[device.PeersPerSlot]device.PDID) {
	d := &fw.domains[slot]
	d.peers = *peers
	fw.Recheck(slot)
	d.crowded = max(0, bits.OnesCount32(d.reads.busy)+d.without(fw.readers(slot))-readChannels)
}

// Recheck ends the reads that neither PD_PEERS nor a memory window of the slot admits any more,
// with status 5.
func (fw *Firmware) Recheck(slot int) {
	d := &fw.domains[slot]
	for i := 0; i < d.reads.level; {
		if r := d.reads.at(i); fw.admits(slot, &r.m) {
			i++
		} else {
			from := r.from
			d.reads.drop(i)
			fw.reply(&from, device.CodeDomain, device.StatusDomain)
		}
	}
	for busy := d.reads.busy; busy != 0; busy &= busy - 1 {
		x := fw.channels.At(slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy))
		if !fw.admits(slot, &x.request.m) {
			fw.fail(x, device.StatusDomain)
		}
	}
	fw.serveWaiting(slot)
}

// Withdrawing reports whether blocks of reads from a range that the slot no longer admits are
// still being read.
func (fw *Firmware) Withdrawing(slot int, va device.VA, bytes uint64) bool {
	for busy := fw.domains[slot].reads.busy; busy != 0; busy &= busy - 1 {
		x := fw.channels.At(slot*device.ChannelsPerSlot + device.WriteChannels + bits.TrailingZeros32(busy))
		if m := &x.request.m; !fw.admits(slot, m) && window.Overlap(m.Src, uint64(m.Size), va, bytes) {
			return true
		}
	}
	return false
}

// SetDomain follows PD_CFG. Disabling a slot, or assigning it to another domain, ends its
// transfers with status 10.
func (fw *Firmware) SetDomain(slot int, pdid device.PDID, g device.Generation, enabled bool) {
	d := &fw.domains[slot]
	if d.enabled == enabled && d.pdid == pdid && d.generation == g {
		return
	}
	if d.enabled {
		fw.refuseWaiting(slot)
		for c := slot * device.ChannelsPerSlot; c < (slot+1)*device.ChannelsPerSlot; c++ {
			if x := fw.channels.Find(c); x != nil && x.live {
				fw.fail(x, device.StatusGone)
			}
		}
	}
	d.pdid, d.generation, d.enabled = pdid, g, enabled
	clear(d.reads.failed)
	clear(d.reads.served)
}

// Doorbell starts the transfer of descriptor d on a channel of a slot or, if d.Abort is set, ends
// the transfer that runs there or was about to start. A doorbell for a channel that is running,
// or whose done is not 0, is ignored: a transfer announced twice starts once.
func (fw *Firmware) Doorbell(slot, channel int, d *device.Descriptor) {
	if slot < 0 || slot >= device.Slots || channel < 0 || channel >= device.WriteChannels || !fw.domains[slot].enabled {
		fw.counts[device.DoorbellDenied]++
		return
	}
	c := int16(slot*device.ChannelsPerSlot + channel)
	x := fw.channels.At(int(c))
	if x.live {
		if d.Abort && !x.failing {
			fw.fail(x, device.StatusAborted)
		}
		return
	}
	if d.Done != device.DoneInitialized {
		return
	}
	x = fw.begin(c, d)
	fw.update(x, device.DoneOngoing)
	if d.Abort {
		fw.fail(x, device.StatusAborted)
		return
	}
	if _, leaving := fw.Leaving(d.DstNode); leaving {
		fw.fail(x, device.StatusGone)
		return
	}
	if !fw.valid(d) {
		fw.counts[device.DoorbellDenied]++ // an invalid transfer is not started (defined by this project)
		fw.fail(x, uint8(device.CodeDecode))
		return
	}
	fw.enqueue(x)
}

// Ack handles an acknowledgement of the block (id, seq) from node src.
func (fw *Firmware) Ack(now int64, src device.NodeID, a mailbox.Ack) {
	if a.Transaction >= device.Transactions {
		fw.counts[device.MsgDropped]++
		return
	}
	id := int16(a.Transaction)
	t := fw.tx.At(int(id))
	if n := fw.seq[src]; n != nil {
		n.At(int(id)).answered(a.Sequence)
	}
	if t.state == stateFree || t.node != src || t.sending > 0 || t.seq != a.Sequence && !fw.former(t, a) {
		fw.counts[device.AckStale]++
		return
	}
	fw.measure(now, t, a.Sequence)
	if a.Code == device.CodeAck {
		fw.counts[device.Acks]++
		if fw.cfg.PathFeedback && t.seq == a.Sequence {
			fw.feedback(now, t)
		}
		fw.acknowledged(t)
		return
	}
	fw.counts[int(device.Nacks0)+int(a.Code&7)]++
	t.lastCode = a.Code
	switch a.Code {
	case device.CodeSlaveError:
		fw.pause(now, t)
	case device.CodeNoContext, device.CodeCorrupt, device.CodeBufferFull:
		fw.backOff(now, t)
	default:
		fw.fail(t.transfer, uint8(a.Code))
	}
}

// former reports whether an answer acknowledges a former sending of a block to another host, whose link may be
// slower than the time-out. The receiver writes a block once, whatever the number, and acknowledges it then.
func (fw *Firmware) former(t *transaction, a mailbox.Ack) bool {
	return a.Code == device.CodeAck && fw.far(t.node) && (a.Sequence-t.first)&device.SequenceMask < (t.seq-t.first)&device.SequenceMask
}

// measure adds the round trip of a block whose sending with number s is answered now: that of the last sending,
// or, for a former number, at most that of the first one.
func (fw *Firmware) measure(now int64, t *transaction, s device.Sequence) {
	if r := fw.trip(t); r != nil && t.timed {
		if s == t.seq {
			t.left = t.last
		}
		r.measure(now - t.left)
	}
	t.timed = false
}

func (fw *Firmware) acknowledged(t *transaction) {
	x := t.transfer
	if t.words {
		x.wordsIn = true
	}
	if t.block < x.blocks {
		x.acked++
		fw.ended.Arrived(int(x.slot), uint32(t.length))
	}
	fw.release(t)
	if x.failing {
		fw.finish(x)
		return
	}
	if x.acked == x.blocks && (x.desc.Notify == 0 || x.wordsIn) {
		fw.complete(x)
		return
	}
	fw.enqueue(x)
}

// pause suspends a block's time-out until a RAPF or the guard time-out (000 §3.2.2; PART cancels
// the time-out, the guard is defined by this project).
func (fw *Firmware) pause(now int64, t *transaction) {
	fw.noteRefusal(t)
	if t.state != statePaused {
		t.state = statePaused
		t.transfer.paused++
		fw.update(t.transfer, device.DoneOngoing)
	}
	fw.enlist(t, listGuard+t.guardStep, now)
}

// backOff retransmits a block that the receiver could not take; from the third refusal in a row
// on, after a back-off.
func (fw *Firmware) backOff(now int64, t *transaction) {
	fw.unpause(t)
	t.nackRow++
	if t.nackRow < backoffFromRow {
		fw.attempt(now, t)
		return
	}
	t.state = stateNacked
	fw.enlist(t, listBackoff+min(t.nackRow-backoffFromRow, backoffSteps-1), now)
}

// Sent reports that the PLDMA has finished sending block id.
func (fw *Firmware) Sent(now int64, id device.TransactionID) {
	t := fw.tx.At(int(id))
	if t.state == stateFree || t.sending == 0 {
		return
	}
	if t.last = now; !t.timed {
		t.left, t.timed = now, true
	}
	t.sent, t.sentAt = true, fw.stamp
	fw.seq[t.node].At(int(id)).sent = t.seq
	if fw.sent(t); t.sending > 0 {
		return
	}
	x := t.transfer
	if x.failing {
		fw.release(t)
		fw.finish(x)
		return
	}
	if t.again {
		t.again = false
		fw.attempt(now, t)
		return
	}
	// The time-out runs from here: before, nothing was in flight.
	fw.await(t, now)
}

// SourceFault reports that the source of block id could not be read and nothing was sent. With a
// TXFIFO the block pauses until a RAPF from its own node; without one its time-out keeps running.
func (fw *Firmware) SourceFault(now int64, id device.TransactionID) {
	t := fw.tx.At(int(id))
	if t.state == stateFree || t.sending == 0 {
		return
	}
	if fw.sent(t); t.sending > 0 {
		return
	}
	t.again = false
	t.lastCode = device.CodeSlaveError
	x := t.transfer
	if x.failing {
		fw.release(t)
		fw.finish(x)
		return
	}
	if fw.cfg.TXFIFO {
		t.atSource, t.sentAt = true, fw.stamp
		fw.pause(now, t)
		return
	}
	if t.sourceFault == 0 {
		t.sourceFault = now + 1
	}
	fw.enlist(t, listTimeout, now)
}

// RAPF obeys or refuses a retransmission request. The transaction must be live with that sequence
// number, the wired PDID must equal the written one, and the request must come from the
// destination domain or, for a source fault, from the block's own domain, by PDID and generation
// (messages.md 2; 000 §3.2.3.3).
func (fw *Firmware) RAPF(now int64, src device.NodeID, m mailbox.RAPF) {
	if m.Transaction >= device.Transactions {
		fw.counts[device.MsgDropped]++
		return
	}
	fw.counts[device.RAPFRx]++
	id := int16(m.Transaction)
	t := fw.tx.At(int(id))
	if t.state == stateFree || t.seq != m.Sequence {
		fw.counts[device.RAPFStale]++
		return
	}
	x := t.transfer
	fromTarget := src == t.node && m.PDID == x.dst && m.Generation == x.desc.DstGeneration
	fromSource := src == fw.cfg.Node && m.PDID == x.pdid && m.Generation == x.generation && t.atSource
	if m.PDID != m.Claimed || !fromTarget && !fromSource {
		fw.counts[device.RAPFDenied]++
		return
	}
	if m.Fail {
		status := uint8(device.CodeDecode)
		if m.Memory {
			status = device.StatusMemory
		}
		fw.fail(x, status)
		return
	}
	t.rapfs++
	if t.rapfs > maxRAPFs {
		fw.fail(x, device.StatusLimit)
		return
	}
	t.attempts, t.nackRow, t.guardStep = 0, 0, 0
	fw.noteRefusal(t)
	t.refusal.asked = fw.stamp
	fw.retransmit(now, t)
}

// Expire handles what is due: time-outs, guards and ends of back-offs.
func (fw *Firmware) Expire(now int64) {
	if len(fw.paced) > 0 {
		fw.pace(now)
	}
	for i := 1; i < lists; i++ {
		for {
			id := fw.timers[i].head
			if id < 0 || fw.tx.At(int(id)).since+fw.period(i) > now {
				break
			}
			t := fw.tx.At(int(id))
			if i >= listFar && fw.wait(now, t) || fw.hold(t) {
				continue
			}
			fw.delist(t)
			switch t.state {
			case stateIssued, stateRetransmitted:
				fw.counts[device.Timeouts]++
			case statePaused:
				fw.counts[device.Guards]++
				t.guardStep = min(t.guardStep+1, guardSteps-1)
			}
			fw.attempt(now, t)
		}
	}
}

// wait reports whether a block whose time-out has expired waits longer, since the time-out has become longer
// after it was sent. Otherwise the time-out doubles. So if a link becomes slow, only the first block that waits
// for it is sent in vain.
func (fw *Firmware) wait(now int64, t *transaction) bool {
	r := fw.trip(t)
	if list := listFar + r.step(fw.timeout); fw.period(list) > fw.period(int(t.list)) {
		fw.enlist(t, list, now)
		return true
	}
	r.doubled = min(r.doubled+1, farSteps)
	return false
}

// attempt retransmits without a request, which counts towards the limit.
func (fw *Firmware) attempt(now int64, t *transaction) {
	if fw.hold(t) {
		return
	}
	counts := t.sourceFault == 0 || now-t.sourceFault > sourceGrace
	if counts {
		t.attempts++
	}
	if t.attempts > maxAttempts {
		status := uint8(t.lastCode)
		if status == 0 {
			status = device.StatusLimit
		}
		fw.fail(t.transfer, status)
		return
	}
	fw.retransmit(now, t)
}

// retransmit sends block id again under a new sequence number, but not while the hardware still
// sends the old one (001 §3.3, retransmission bit).
func (fw *Firmware) retransmit(now int64, t *transaction) {
	if t.sending > 0 && (!fw.cfg.Options.NoRetransmissionBit || t.sending >= maxTwice) {
		t.again = true
		return
	}
	if fw.hold(t) {
		return
	}
	fw.unpause(t)
	t.state, t.atSource = stateRetransmitted, false
	fw.counts[device.Retransmits]++
	t.resent++
	t.transfer.resent++
	t.seq = fw.nextSequence(t.node, t.id)
	if !t.sent && t.sending == 0 {
		// No node has received the earlier numbers, so they may be reused.
		t.first = t.seq
	}
	fw.transmit(t)
}

func (fw *Firmware) unpause(t *transaction) {
	if t.state == statePaused {
		t.transfer.paused--
		fw.update(t.transfer, device.DoneOngoing)
	}
	t.state = stateIssued
	fw.delist(t)
}

// release ends transaction id and frees the ID.
func (fw *Firmware) release(t *transaction) {
	x := t.transfer
	status := uint8(0)
	if x.failing {
		status = x.status
	}
	fw.tellRefusal(t, true, status)
	fw.unpause(t)
	for p := &x.first; *p >= 0; p = &fw.tx.At(int(*p)).peer {
		if *p == t.id {
			*p = t.peer
			break
		}
	}
	x.inflight--
	if fw.cfg.PathFeedback {
		fw.landed(t)
	}
	fw.giveID(x.slot, t)
}

// fail ends a transfer with a status. Its other blocks are cancelled; blocks being sent are
// cancelled when the sending ends, since their source is in use until then.
func (fw *Firmware) fail(x *transfer, status uint8) {
	if !x.live {
		return
	}
	if !x.failing {
		x.failing, x.status = true, status
	}
	fw.unqueue(x)
	for id := x.first; id >= 0; {
		t := fw.tx.At(int(id))
		id = t.peer
		if t.sending == 0 {
			fw.release(t)
		}
	}
	fw.finish(x)
}

func (fw *Firmware) finish(x *transfer) {
	if x.inflight > 0 {
		return
	}
	fw.update(x, device.DoneFailed)
	fw.over(x)
}

func (fw *Firmware) complete(x *transfer) {
	fw.update(x, device.DoneCompleted)
	fw.over(x)
}

// over removes a transfer from its channel.
func (fw *Firmware) over(x *transfer) {
	fw.unqueue(x)
	x.live = false
	dir, status := tally.Write, uint8(device.StatusNone)
	if x.isRead {
		dir = tally.Read
	}
	if x.failing {
		status = x.status
	}
	fw.ended.Over(int(x.slot), dir, device.ClassOf(x.desc.Size, x.desc.Urgent), status, x.desc.Size, fw.now-x.began)
	if x.isRead {
		fw.readOver(x)
	}
}
