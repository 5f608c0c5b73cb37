package session

import (
	"fmt"
	"slices"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/mailbox"
)

// start initializes the node. On the owning goroutine.
func (n *Node) start() error {
	cfg := n.d.cfg.Settings()
	r := device.Reader{Bus: n.bus}
	id := device.NodeID(r.Read32(device.PL, device.PLNodeID) & device.NodeIDMask)
	caps := r.Read64(device.PL, device.PLCaps)
	if r.Err != nil {
		return r.Err
	}
	n.known.Store(uint32(id))
	n.caps.Store(caps)
	n.records.begin()
	var options []domain.Option
	unmask := uint32(1) << device.VectorMailbox
	if m := n.d.features.Sharing; m != nil {
		options = append(options, domain.WithTables(func(slot int) uint64 { return m.Tables(n.index, slot) }))
		unmask |= 1 << device.VectorDone // the machine carries completions to the processes
	}
	if cfg.Stall {
		options = append(options, domain.Stall())
	}
	var err error
	if n.domains, err = domain.NewManager(n.bus, id, n.d.cfg.Groups, options...); err != nil {
		return err
	}
	if err := n.domains.Init(); err != nil {
		return err
	}
	// Init leaves vectors 2 and 3 masked. 2 is served here; 3 stays masked if the processes
	// see their descriptors change without pfd.
	mask := r.Read32(device.PL, device.PLIRQMask)
	if r.Err != nil {
		return r.Err
	}
	for _, reg := range []struct {
		offset, value uint32
	}{
		{device.PLTimeoutUS, cfg.TimeoutUS},
		{device.PLGuardUS, cfg.GuardUS},
		{device.PLOutstanding, cfg.Outstanding},
		{device.PLIRQMask, mask &^ unmask},
	} {
		if err := n.bus.Window(device.PL).Write32(reg.offset, reg.value); err != nil {
			return fmt.Errorf("register pl+%#x: %w", reg.offset, err)
		}
	}
	n.faults = fault.New(fault.Config{
		Bus: n.bus, Memory: n.pageIns, Node: id, Now: n.d.cfg.Now, Log: n.log,
		TimeoutSource: cfg.SourceTimeout,
		Observe:       n.observe,
		ObservePageIn: n.records.pageIn,
	})
	return nil
}

// observe handles a fault whose outcome is final. On the owning goroutine; it never blocks.
func (n *Node) observe(rec *fault.Record) {
	n.records.fault(rec)
	if s := n.sessions[rec.Slot]; s != nil {
		s.tellCounts()
	}
	n.d.cfg.Observe(n, rec)
}

// maxDrain bounds the messages that one interrupt takes from one mailbox. The rest raises the
// vector again.
const maxDrain = device.MailboxDepth

// Interrupt implements device.Handler.
func (n *Node) Interrupt(vector int) {
	switch vector {
	case device.VectorFault, device.VectorFIFO:
		if n.faults != nil {
			n.faults.Interrupt(vector)
		}
	case device.VectorMailbox:
		n.drain()
		n.clear(vector)
	case device.VectorDone:
		// Masked, or the machine serves it.
		n.clear(vector)
	}
}

// pid returns the pid of a slot's process, 0 if there is none.
func (n *Node) pid(slot int) uint32 {
	if slot < len(n.sessions) && n.sessions[slot] != nil {
		return uint32(n.sessions[slot].conn.Peer().PID)
	}
	return 0
}

// drain takes the messages out of pfd's mailboxes. Mailbox 3 is for other pfds; messages in
// the others are only counted, so that a full mailbox never blocks its senders.
func (n *Node) drain() {
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
			if i == device.MailboxDriver && n.domains != nil {
				n.d.cfg.FromPeer(n, src, slices.Clone(words[:src.Words]))
			}
		}
	}
}

// clear clears the latched cause of a vector. A cause that persists is set again at once
// (spec/hardware.md 3, IRQ_STATUS).
func (n *Node) clear(vector int) {
	n.fail(n.bus.Window(device.PL).Write32(device.PLIRQStatus, 1<<vector))
}

// fail keeps and logs the first error of an interrupt.
func (n *Node) fail(err error) {
	if err != nil && n.broken == nil {
		n.broken = err
		n.log.Error("interrupt: the device does not answer", "err", err)
	}
}
