package fault

import (
	"fmt"
	"log/slog"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/packetizer"
)

// New returns the driver of a node. It accesses no register; the first Add or Interrupt does.
func New(cfg Config) *Driver {
	d := &Driver{
		bus: cfg.Bus, machine: cfg.Memory, node: cfg.Node, now: cfg.Now,
		timeoutSource: cfg.TimeoutSource, lg: cfg.Log, observe: cfg.Observe,
		observePageIn: cfg.ObservePageIn,
	}
	if d.lg == nil {
		d.lg = slog.New(slog.DiscardHandler)
	}
	d.halfFunc = d.pageInHalf
	d.sendAgainFunc = d.sendAgain
	for n := range d.slots {
		d.reset(&d.slots[n])
		d.slots[n].port = packetizer.New(cfg.Bus.Window(device.PKTZ), n)
	}
	return d
}

// Add starts serving the faults of a domain. Its slot must be set up; a domain that the driver
// already serves in the slot is replaced. An error matches ErrTarget or device.ErrGone.
func (d *Driver) Add(t Target) error {
	t.Policy, t.Method = t.Policy.Chosen(), t.Method.Chosen()
	switch {
	case t.Slot < 0 || t.Slot >= device.Slots:
		return fmt.Errorf("%w: slot %d; a node has slots 0 to %d", ErrTarget, t.Slot, device.Slots-1)
	case t.PDID == 0:
		return fmt.Errorf("%w: slot %d: PDID 0 is never given out", ErrTarget, t.Slot)
	case !t.Policy.Known():
		return fmt.Errorf("%w: slot %d: %w: %v", ErrTarget, t.Slot, pagein.ErrPolicy, t.Policy)
	case !t.Method.Known():
		return fmt.Errorf("%w: slot %d: %w: %v", ErrTarget, t.Slot, pagein.ErrMethod, t.Method)
	case t.Method == Touch && t.Delegate == nil:
		return fmt.Errorf("%w: slot %d: method touch needs a delegate", ErrTarget, t.Slot)
	}
	if !d.start() {
		return fmt.Errorf("fault driver of node %d: %w", d.node, device.ErrGone)
	}
	d.Remove(t.Slot)
	s := &d.slots[t.Slot]
	s.target = t
	s.live = true
	return nil
}

// Remove stops serving a slot: nothing more is paged in or sent for it, and the result of a
// page-in in flight is ignored. That page-in may still use the process after Remove has returned.
func (d *Driver) Remove(n int) {
	if n < 0 || n >= device.Slots || !d.slots[n].live {
		return
	}
	s := &d.slots[n]
	removed := func(record uint64) {
		if r := d.log.at(record); r != nil {
			r.Outcome = Removed
			d.final(r)
		}
	}
	for _, p := range s.pages {
		for _, w := range p.waits {
			removed(w.record)
		}
	}
	for _, b := range s.blocks {
		// A block here has not been answered, whether its pages are resident or not.
		for _, record := range b.recs[:b.nrecs] {
			removed(record)
		}
	}
	d.resume(n, true)
	d.reset(s)
	s.gen++
}
