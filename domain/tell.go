package domain

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// tellInterface is the packetizer by which pfds speak to each other: the last of
// pfd's (spec/hardware.md 3; which one is ours).
const tellInterface = device.MailboxProcess - 1

// Tell sends words to a mailbox of pfd's, 3..15, on another node. The packetizer
// stamps device.PDIDDriver for that long, whatever slot it belongs to: Told knows
// it by that. On the owning goroutine. An error matches ErrNotReady,
// packetizer.ErrRefused (no route, or refused at once) or device.ErrGone.
func (m *Manager) Tell(dst device.NodeID, box uint8, words ...uint64) error {
	if !m.ready {
		return fmt.Errorf("node %d: %w; call Init first", m.node, ErrNotReady)
	}
	r := regs{bus: m.bus, node: m.node}
	was := r.read64(device.PL, pktzCfg(tellInterface))
	r.write64(device.PL, pktzCfg(tellInterface), pktzValue(tellInterface, m.node, device.PDIDDriver))
	if r.err != nil {
		return r.err
	}
	err := packetizer.New(m.bus.Window(device.PKTZ), tellInterface).Send(dst, box, words...)
	r.write64(device.PL, pktzCfg(tellInterface), was)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return fmt.Errorf("telling node %d: %w", dst, err)
	}
	return nil
}

// Told says whether a message in one of pfd's mailboxes is of another pfd's Tell:
// neither an R5's nor sent for a process.
func Told(src mailbox.Source) bool {
	return src.Interface == tellInterface && src.PDID == device.PDIDDriver
}
