package daemon

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/emu"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/netlink"
)

// node is one node's driver: its domain manager, its fault driver and its
// interrupt handler. All of it belongs to the owning goroutine, but for what
// is set once before the node is in use (index, bus), and atomic values.
type node struct {
	index int
	bus   device.Bus
	known atomic.Uint32 // its device's id, see id
	caps  atomic.Uint64
	log   *slog.Logger

	domains  *domain.Manager
	faults   *fault.Driver
	sessions [device.Slots]*session
	former   [device.Slots][]tenancy // attachments that have ended, the oldest first

	asking sync.Mutex      // of sender, but for its counters
	sender *netlink.Sender // of fault messages to delegates
	strays uint64          // messages of others to its socket

	accesses      func() emu.Accesses                    // of the machine, nil where it counts none
	invalidations func() [device.Slots]tally.Invalidated // the same
	invalidated   tally.Invalidated                      // of sessions that have ended, by their regions
	mailbox       uint64                                 // messages drained from mailboxes 3..15
	broken        error                                  // first error of a register access in an interrupt

	attached, ended uint64

	fromPeer func(mailbox.Source, []uint64) // takes messages of other pfds
	options  []domain.Option                // how its domains are made
	unmask   uint32                         // vectors to unmask besides the domain manager's

	started atomic.Bool // it has been initialized once
	down    atomic.Bool // its device is gone and waited for

	times   stageTimes // of the faults
	records *records   // of the same, for who looks from outside
}

// id gives the node id of its device, of the last one where that is gone.
func (n *node) id() device.NodeID { return device.NodeID(n.known.Load()) }

// start initializes the node. On the owning goroutine.
func (n *node) start(cfg *Config, dir *domain.Directory, now func() int64, observe func(*node, *fault.Record)) error {
	r := &reader{bus: n.bus}
	id := device.NodeID(r.read32(device.PL, device.PLNodeID) & device.NodeIDMask)
	caps := r.read64(device.PL, device.PLCaps)
	if r.err != nil {
		return r.err
	}
	n.known.Store(uint32(id))
	n.caps.Store(caps)
	n.records.begin()
	options := n.options
	if cfg.FaultMode == FaultStall {
		options = append(slices.Clip(options), domain.Stall())
	}
	var err error
	if n.domains, err = domain.NewManager(n.bus, id, dir, options...); err != nil {
		return err
	}
	if err := n.domains.Init(); err != nil {
		return err
	}
	// Init leaves vectors 2 and 3 masked. 2 is served here; 3 stays masked where
	// processes see their descriptors change and nobody in pfd waits for it.
	mask := r.read32(device.PL, device.PLIRQMask)
	if r.err != nil {
		return r.err
	}
	for _, reg := range []struct {
		offset, value uint32
	}{
		{device.PLTimeoutUS, cfg.TimeoutUS},
		{device.PLGuardUS, cfg.GuardUS},
		{device.PLOutstanding, cfg.Outstanding},
		{device.PLIRQMask, mask &^ n.unmask},
	} {
		if err := n.bus.Window(device.PL).Write32(reg.offset, reg.value); err != nil {
			return fmt.Errorf("register pl+%#x: %w", reg.offset, err)
		}
	}
	n.faults = fault.New(fault.Config{
		Bus: n.bus, Node: id, Now: now, Log: n.log,
		TimeoutSource: cfg.SourceFaults == SourceTimeout,
		Observe:       func(rec *fault.Record) { observe(n, rec) },
		ObservePageIn: n.records.pageIn,
	})
	return nil
}

// maxDrain bounds the messages taken from one mailbox by one interrupt: its
// depth. What is left raises the vector again.
const maxDrain = device.MailboxDepth

// Interrupt implements device.Handler.
func (n *node) Interrupt(vector int) {
	switch vector {
	case device.VectorFault, device.VectorFIFO:
		if n.faults != nil {
			n.faults.Interrupt(vector)
		}
	case device.VectorMailbox:
		n.drain()
		n.clear(vector)
	case device.VectorDone:
		// Masked: processes learn of it by their pages.
		n.clear(vector)
	}
}

// drain takes what stands in pfd's mailboxes: 3 is other pfds'; the rest is only
// counted, so that a full one never blocks its senders.
func (n *node) drain() {
	var words [device.PktzMaxWords]uint64
	for i := device.MailboxDriver; i < device.MailboxProcess; i++ {
		box := mailbox.NewBox(n.bus.Window(device.MBOX), i)
		for range maxDrain {
			messages, _, err := box.Status()
			if err == nil && messages == 0 {
				break
			}
			var src mailbox.Source
			if err == nil {
				src, err = box.Receive(&words)
			}
			if err != nil {
				n.fail(err)
				return
			}
			n.mailbox++
			if i == mailboxPeers && n.fromPeer != nil {
				n.fromPeer(src, slices.Clone(words[:src.Words]))
			}
		}
	}
}

// clear clears the latched cause of a vector; where it still holds the device
// sets it again at once (spec/hardware.md 3, IRQ_STATUS).
func (n *node) clear(vector int) {
	n.fail(n.bus.Window(device.PL).Write32(device.PLIRQStatus, 1<<vector))
}

// fail keeps the first error of an interrupt and logs it once.
func (n *node) fail(err error) {
	if err != nil && n.broken == nil {
		n.broken = err
		n.log.Error("interrupt: the device does not answer", "err", err)
	}
}
