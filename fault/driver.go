package fault

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gup"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/pagein"
)

// Pager brings pages of one process in. It is called in device.Call.Run, off the
// owning goroutine.
type Pager interface {
	// PageIn makes the pages of a range of 1 to 64 resident and permitted, as far
	// as the mapping of the first reaches. Its Result's Err says why the first
	// page is not: gup.ErrUnmapped, ErrDenied, ErrGone, ErrPermission,
	// ErrPastEnd, ErrUnmappable and ErrNotShared are final, any other passes.
	PageIn(va device.VA, pages int, write bool) gup.Result
}

// Remapper is a Pager of a device with tables of pfd's own: what such a device is
// refused although it is entered may be mapped once more.
type Remapper interface {
	Pager
	// Again is PageIn for one page that was found there again and again.
	Again(va device.VA, write bool) gup.Result
}

// Asker is a Pager that has the process page in: Ask asks, by calls that bring nothing in,
// and does not wait. Nil: PageIn is to be called.
type Asker interface {
	Pager
	Ask(va device.VA, pages int, write bool) gup.Question
}

// Delegate asks a process to page in and to send the RAPF itself. Ask must not
// block; a full socket gives an error that matches netlink.ErrFull.
type Delegate interface {
	Ask(netlink.Fault) error
}

// Target is a domain whose faults the driver serves.
type Target struct {
	Slot     int
	PDID     device.PDID
	Policy   Policy   // PolicyDefault: PIO
	Method   Method   // MethodDefault: GUP
	Pager    Pager    // all but Touch, and there of what the process declines
	Delegate Delegate // Touch
	// Forbids reports whether a page may not be written, whatever its mapping permits; nil:
	// none is such. It does not block.
	Forbids func(page device.VA) bool
	// ByMachine says that the machine pages in (gup.Call), and Pager is not used.
	ByMachine bool
}

// ErrTarget: a Target that cannot be served.
var ErrTarget = errors.New("bad fault target")

// Config is what a Driver works with.
type Config struct {
	Bus  device.Bus
	Node device.NodeID
	// Now gives nanoseconds of a steady clock. It is called on the owning
	// goroutine and in Call.Run.
	Now func() int64
	// TimeoutSource has source faults served by FSR and FAR alone, as where the
	// device has no TXFIFO: page in, send nothing, the sender's time-out does
	// the rest (the thesis's way).
	TimeoutSource bool
	Log           *slog.Logger // nil: nothing is logged
	// Observe is called with each record when its outcome is final, on the owning
	// goroutine; nil: nobody looks. The record is the driver's: it must be copied
	// to be kept.
	Observe func(*Record)
	// ObservePageIn is called with each page-in that has ended, as Observe is.
	ObservePageIn func(*PageIn)
}

// Driver serves the faults of one node. It belongs on the goroutine that owns
// the windows; New may be called anywhere.
type Driver struct {
	bus           device.Bus
	node          device.NodeID
	now           func() int64
	timeoutSource bool
	lg            *slog.Logger

	ready  bool   // CAPS and IRQ_MASK are read
	dead   bool   // the device does not answer
	bare   bool   // source faults come by FSR and FAR only
	tx     bool   // there is a TXFIFO to drain
	limit  uint64 // first page past the address width
	mask   uint32 // IRQ_MASK as last written
	posted bool   // the page-in half is posted
	irqAt  int64
	stuck  int // interrupts in a row after which FSR was still set

	round  func() // prebuilt, so that posting allocates nothing
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

// New makes the driver of a node. It touches no register: the first Add or
// Interrupt does.
func New(cfg Config) *Driver {
	d := &Driver{
		bus: cfg.Bus, node: cfg.Node, now: cfg.Now,
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

// Add has the faults of a domain served. Its slot must be set up; one that the
// driver already serves is replaced. An error matches ErrTarget or
// device.ErrGone.
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
	case t.Method != Touch && t.Pager == nil && !t.ByMachine:
		return fmt.Errorf("%w: slot %d: method %v needs a pager", ErrTarget, t.Slot, t.Method)
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

// Remove ends the service of a slot: nothing more is paged in or sent for it,
// and a page-in under way ends quietly. That one may still use the Pager after
// Remove has returned.
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
		// A block here has not been answered, be its pages resident or not.
		for _, record := range b.recs[:b.nrecs] {
			removed(record)
		}
	}
	d.resume(n, true)
	d.reset(s)
	s.gen++
}

// start reads what the driver needs to know of the node, once.
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

// byPDID finds the slot of a domain; nil where there is none.
func (d *Driver) byPDID(p device.PDID) *slot {
	for n := range d.slots {
		if s := &d.slots[n]; s.live && s.target.PDID == p {
			return s
		}
	}
	return nil
}

// gone takes an access that failed: there is no device any more, and nothing
// that this driver could do for it. Serve tells its caller.
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
