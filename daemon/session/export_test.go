package session

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/quota"
)

// Seen returns how many attachments have a part of a range in their view.
func (d *Host) Seen(va device.VA, size uint64) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.live {
		if s.view != nil && s.view.Overlaps(va, size) {
			n++
		}
	}
	return n
}

// Tables returns how many page tables of views are counted.
func (d *Host) Tables() int { return d.tables.Total() }

// Turns are those of the calls that map what is shared.
func (d *Host) Turns() *quota.Turns { return &d.turns }

// Listed returns whether one of the sessions leaves its group; nil: there is none.
func (d *Host) Listed() func() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.live {
		return s.awaitLeaving
	}
	return nil
}
