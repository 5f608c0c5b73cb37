package fault

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/space"
)

// Delegate asks a process to page in and to send the RAPF itself. Ask must not block; if the
// socket is full it returns an error that matches netlink.ErrFull.
type Delegate interface {
	Ask(netlink.Fault) error
}

// Target is a domain whose faults the driver serves.
type Target struct {
	Slot     int
	PDID     device.PDID
	Policy   Policy   // PolicyDefault: PIO
	Method   Method   // MethodDefault: GUP
	Delegate Delegate // Touch
	// Forbids reports whether a page must not be written, whatever its mapping permits; nil: no
	// such page. It does not block.
	Forbids func(page device.VA) bool
}

// ErrTarget: a Target is invalid.
var ErrTarget = errors.New("bad fault target")

// Config configures a Driver.
type Config struct {
	Bus device.Bus
	// Memory pages in.
	Memory space.Machine
	Node   device.NodeID
	// Now returns nanoseconds of a monotonic clock. Any goroutine may call it.
	Now func() int64
	// TimeoutSource makes source faults be served by FSR and FAR alone, as if the device had no
	// TXFIFO: page in, send nothing, and leave the retransmission to the sender's time-out (as in
	// the thesis).
	TimeoutSource bool
	Log           *slog.Logger // nil: nothing is logged
	// Observe, if not nil, is called with each record when its outcome is final, on the owning
	// goroutine. The record belongs to the driver: copy it to keep it.
	Observe func(*Record)
	// ObservePageIn is called in the same way with each completed page-in.
	ObservePageIn func(*PageIn)
}

// Driver serves the faults of one node. It must be used on the goroutine that owns the windows;
// New may be called anywhere.
type Driver struct {
	bus           device.Bus
	memory        space.Machine
	node          device.NodeID
	now           func() int64
	timeoutSource bool
	lg            *slog.Logger

	ready  bool   // CAPS and IRQ_MASK have been read
	dead   bool   // the device does not respond
	bare   bool   // source faults are reported only by FSR and FAR
	tx     bool   // there is a TXFIFO to drain
	limit  uint64 // first page past the address width
	mask   uint32 // IRQ_MASK as last written
	posted bool   // the page-in half is posted
	irqAt  int64
	stuck  int // interrupts in a row that left FSR set

	round  func() // allocated once, so that posting does not allocate
	resend func()
	resent bool // resend is posted

	slots   [device.Slots]slot
	calls   []*call
	demands []demand
	ranges  []pagein.Range
	asks    []ask
	instant []answer

	freeBlocks []*block
	freePages  []*page

	log     log
	stats   Stats
	observe func(*Record)

	observePageIn func(*PageIn)
}

// New returns the driver of a node. It accesses no register; the first Add or Interrupt does.
func New(cfg Config) *Driver {
	d := &Driver{
		bus: cfg.Bus, memory: cfg.Memory, node: cfg.Node, now: cfg.Now,
		timeoutSource: cfg.TimeoutSource, lg: cfg.Log, observe: cfg.Observe,
		observePageIn: cfg.ObservePageIn,
	}
	if d.lg == nil {
		d.lg = slog.New(slog.DiscardHandler)
	}
	d.round = d.pageInHalf
	d.resend = d.sendAgain
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

// start reads the node's capabilities and mask, once.
func (d *Driver) start() bool {
	if d.ready || d.dead {
		return !d.dead
	}
	caps := d.read64(device.PL, device.PLCaps)
	d.mask = d.read32(device.PL, device.PLIRQMask)
	if d.dead {
		return false
	}
	bits := min(max(caps&device.CapsVABitsMask, device.MinVABits), device.MaxVABits)
	d.limit = 1 << (bits - device.PageShift)
	d.tx = caps&device.CapsTXFIFO != 0
	d.bare = d.timeoutSource || !d.tx
	d.ready = true
	return true
}

// byPDID returns the slot of a domain; nil if there is none.
func (d *Driver) byPDID(p device.PDID) *slot {
	for n := range d.slots {
		if s := &d.slots[n]; s.live && s.target.PDID == p {
			return s
		}
	}
	return nil
}

// gone handles a failed access: the device is gone, and the driver stops. Serve returns the error
// to its caller.
func (d *Driver) gone(err error) {
	d.stats.Gone++
	if !d.dead {
		d.dead = true
		d.lg.Error("fault driver stopped: the device does not answer", "node", uint32(d.node), "error", err)
	}
}

func (d *Driver) read32(w device.WindowID, off uint32) uint32 {
	v, err := d.bus.Window(w).Read32(off)
	if err != nil {
		d.gone(err)
		return 0
	}
	return v
}

func (d *Driver) read64(w device.WindowID, off uint32) uint64 {
	v, err := d.bus.Window(w).Read64(off)
	if err != nil {
		d.gone(err)
		return 0
	}
	return v
}

func (d *Driver) write32(w device.WindowID, off, v uint32) {
	if err := d.bus.Window(w).Write32(off, v); err != nil {
		d.gone(err)
	}
}
