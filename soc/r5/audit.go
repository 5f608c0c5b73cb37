package r5

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/exanet/pfd/device"
)

// ErrAudit means that a limit is exceeded or a count is wrong.
var ErrAudit = errors.New("firmware audit")

// Audit checks the firmware's invariants: each ID is free or in use once, no domain or transfer
// exceeds its share or window, and the timer lists are sorted.
func (fw *Firmware) Audit() error {
	var ids [device.Slots]int
	var flying [device.Channels]int
	var sending [device.Slots]int
	var used [device.Transactions]bool
	live := 0
	for i, t := range fw.tx.All() {
		if t.state == stateFree {
			continue
		}
		live++
		used[i] = true
		x := t.transfer
		if !x.live {
			return fmt.Errorf("%w: id %d belongs to channel %d, which has ended", ErrAudit, i, x.channel)
		}
		ids[x.slot]++
		if t.bulk {
			sending[x.slot] += int(t.sending)
		}
		flying[x.channel]++
		if t.list == listNone && t.sending == 0 {
			return fmt.Errorf("%w: id %d is in no timer list and not being sent", ErrAudit, i)
		}
		if t.list == listHeld && fw.paths[t.node].takes(t.short) {
			return fmt.Errorf("%w: id %d waits for node %d, whose link is ready", ErrAudit, i, t.node)
		}
	}
	if live+fw.free.count != fw.cfg.IDs {
		return fmt.Errorf("%w: %d ids in use and %d free", ErrAudit, live, fw.free.count)
	}
	seen := [device.Transactions]bool{}
	for i := range fw.free.count {
		if fw.cfg.Options.NoTickets {
			break // the ring is unused
		}
		id := fw.free.ring[(fw.free.front+i)%len(fw.free.ring)]
		if seen[id] || used[id] {
			return fmt.Errorf("%w: id %d is free twice or in use", ErrAudit, id)
		}
		seen[id] = true
	}
	reserve := 0
	for i := range fw.domains {
		d := &fw.domains[i]
		if d.ids != ids[i] || d.ids > maxDomainIDs || d.sending != sending[i] {
			return fmt.Errorf("%w: slot %d counts %d ids and holds %d; %d blocks with the PLDMA and has %d", ErrAudit, i, d.ids, ids[i], d.sending, sending[i])
		}
		reserve += max(0, keptIDs-d.ids)
	}
	if reserve != fw.reserve {
		return fmt.Errorf("%w: %d ids reserved, counted %d", ErrAudit, reserve, fw.reserve)
	}
	if err := fw.auditQueues(); err != nil {
		return err
	}
	for c, x := range fw.channels.All() {
		if x.live && x.inflight != flying[c] || x.live && x.inflight > fw.window(x) && fw.outstanding > 1 {
			return fmt.Errorf("%w: channel %d has %d blocks in flight of %d, window %d", ErrAudit, c, x.inflight, flying[c], fw.window(x))
		}
		if x.live && !x.failing && x.inflight == 0 && !x.queued && !x.parked {
			return fmt.Errorf("%w: channel %d has nothing in flight and is not queued", ErrAudit, c)
		}
		if p := fw.paths[x.desc.DstNode]; x.parked && (!x.live || x.queued || !p.paced && p.open(fw.now, x.nextLength(), x.short())) {
			return fmt.Errorf("%w: channel %d waits for node %d, whose path is open", ErrAudit, c, x.desc.DstNode)
		}
	}
	for i := 1; i < lists; i++ {
		since := int64(-1 << 62)
		for id := fw.timers[i].head; id >= 0; id = fw.timed[id].next {
			if fw.tx.At(int(id)).since < since {
				return fmt.Errorf("%w: timer list %d is out of order at id %d", ErrAudit, i, id)
			}
			since = fw.tx.At(int(id)).since
		}
	}
	return nil
}

// auditQueues checks the scheduler's queues and their bitmaps, and the waiting read requests.
func (fw *Firmware) auditQueues() error {
	queued := 0
	for class := range fw.run.queues {
		for slot, q := range fw.run.queues[class] {
			if q.head >= 0 != (fw.run.waiting[class]>>slot&1 != 0) {
				return fmt.Errorf("%w: class %d of slot %d: the bitmap is wrong", ErrAudit, class, slot)
			}
			for c := q.head; c >= 0; c = fw.run.links[c].next {
				x := fw.channels.At(int(c))
				if !x.queued || !x.live || x.failing || int(x.class) != class || int(x.slot) != slot {
					return fmt.Errorf("%w: channel %d is in the wrong queue", ErrAudit, c)
				}
				if queued++; queued > device.Channels {
					return fmt.Errorf("%w: a run queue has a cycle", ErrAudit)
				}
			}
		}
	}
	var reading [device.Slots]uint32
	for c, x := range fw.channels.All() {
		if x.queued {
			queued--
		}
		if ch := c%device.ChannelsPerSlot - device.WriteChannels; x.live && ch >= 0 {
			reading[c/device.ChannelsPerSlot] |= 1 << ch
		}
	}
	if queued != 0 {
		return fmt.Errorf("%w: channels that are queued are in no queue", ErrAudit)
	}
	for _, p := range fw.run.passed {
		if p > passes+int(classes) {
			return fmt.Errorf("%w: a class was passed over %d times", ErrAudit, p)
		}
	}
	if fw.asked != fw.settled {
		return fmt.Errorf("%w: %d read requests arrived, %d were handled", ErrAudit, fw.asked, fw.settled)
	}
	for i := range fw.domains {
		q := &fw.domains[i].reads
		if reading[i] != q.busy {
			return fmt.Errorf("%w: read channels of slot %d: %#x are busy and %#x live", ErrAudit, i, q.busy, reading[i])
		}
		for k := range q.level {
			if fw.mayServe(i, q.at(k).m.PDID) {
				return fmt.Errorf("%w: slot %d has a waiting read request and a free channel for it", ErrAudit, i)
			}
		}
		d := &fw.domains[i]
		if n := bits.OnesCount32(q.busy) + d.without(fw.readers(i)); d.enabled && n > readChannels+d.crowded {
			return fmt.Errorf("%w: slot %d has too few read channels left for %d requesters", ErrAudit, i, d.without(fw.readers(i)))
		}
	}
	return nil
}
