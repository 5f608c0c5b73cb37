package domain

import (
	"fmt"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// tellInterface is the packetizer for messages between pfds: the last of pfd's (spec/hardware.md
// 3; the choice is defined by this project).
const tellInterface = device.MailboxProcess - 1

// Tell sends words to a mailbox of pfd, 3..15, on another node. The packetizer stamps
// device.PDIDDriver meanwhile, whatever slot it belongs to, so that Told recognizes the message.
// It runs on the owning goroutine. An error matches ErrNotReady, packetizer.ErrRefused (no route,
// or refused at once) or device.ErrGone.
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
		return fmt.Errorf("message to node %d: %w", dst, err)
	}
	return nil
}

// Told reports whether a message in one of pfd's mailboxes comes from another pfd's Tell, and not
// from an R5 or a process.
func Told(src mailbox.Source) bool {
	return src.Interface == tellInterface && src.PDID == device.PDIDDriver
}
