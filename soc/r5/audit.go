package r5

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/device"
)

// ErrAudit: a bound or a count of the machine does not hold.
var ErrAudit = errors.New("firmware audit")

// Audit checks the firmware's bounds: each id is free or in use once, nobody
// holds more than its share, windows hold, the timer lists are in order.
func (fw *Firmware) Audit() error {
	var ids [device.Slots]int
	var flying [device.Channels]int
	live := 0
	for i := range fw.tx {
		t := &fw.tx[i]
		if t.state == stateFree {
			continue
		}
		live++
		x := &fw.channels[t.transfer]
		if !x.live {
			return fmt.Errorf("%w: id %d belongs to channel %d, which is over", ErrAudit, i, t.transfer)
		}
		ids[x.slot]++
		flying[t.transfer]++
		if t.list == listNone && !t.sending {
			return fmt.Errorf("%w: id %d waits for nothing", ErrAudit, i)
		}
	}
	if live+fw.free.count != device.Transactions {
		return fmt.Errorf("%w: %d ids in use and %d free", ErrAudit, live, fw.free.count)
	}
	seen := [device.Transactions]bool{}
	for i := range fw.free.count {
		id := fw.free.ring[(fw.free.front+i)%len(fw.free.ring)]
		if seen[id] || fw.tx[id].state != stateFree {
			return fmt.Errorf("%w: id %d is free twice or in use", ErrAudit, id)
		}
		seen[id] = true
	}
	reserve := 0
	for i := range fw.domains {
		d := &fw.domains[i]
		if d.ids != ids[i] || d.ids > maxDomainIDs {
			return fmt.Errorf("%w: slot %d counts %d ids and holds %d", ErrAudit, i, d.ids, ids[i])
		}
		if d.enabled {
			reserve += max(0, keptIDs-d.ids)
		}
	}
	if reserve != fw.reserve {
		return fmt.Errorf("%w: %d ids kept, counted %d", ErrAudit, reserve, fw.reserve)
	}
	for c := range fw.channels {
		x := &fw.channels[c]
		if x.live && x.inflight != flying[c] || x.live && x.inflight > fw.window(x) && fw.outstanding > 1 {
			return fmt.Errorf("%w: channel %d has %d blocks in flight of %d, window %d", ErrAudit, c, x.inflight, flying[c], fw.window(x))
		}
		if x.live && !x.failing && x.inflight == 0 && !x.queued {
			return fmt.Errorf("%w: channel %d waits for nothing", ErrAudit, c)
		}
	}
	for i := 1; i < lists; i++ {
		since := int64(-1 << 62)
		for id := fw.timers[i].head; id >= 0; id = fw.tx[id].next {
			if fw.tx[id].since < since {
				return fmt.Errorf("%w: timer list %d is out of order at id %d", ErrAudit, i, id)
			}
			since = fw.tx[id].since
		}
	}
	return nil
}
