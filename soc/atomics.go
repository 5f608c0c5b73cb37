package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/wire"
)

// gsasHost is the node as seen by its unit.
type gsasHost Node

// Perform implements gsas.Host.
func (h *gsasHost) Perform(a *gsas.Access) {
	if h.cfg.Queues && !a.Op.Memory() {
		h.calls = append(h.calls, a)
		return
	}
	h.out = append(h.out, Action{Kind: Atomic, Atomic: a})
}

// Answer implements gsas.Host. Its source PDID is 0, which no process has.
func (h *gsasHost) Answer(to *gsas.Source, words []uint64) {
	n := (*Node)(h)
	f := n.cfg.Pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Message, Epoch: n.dma.PeerEpoch(to.Node), SrcNode: n.id, SrcInterface: device.MailboxGSAS,
		DstNode: to.Node, DstMailbox: to.Interface, DstGeneration: to.Generation,
	}
	f.MessageLen = uint8(copy(f.Message[:], words))
	n.counts[device.TXPackets]++
	if to.Node != n.id {
		n.out = append(n.out, Action{Kind: Transmit, Frame: f})
		return
	}
	n.deliver(f)
	n.cfg.Pool.Put(f)
}

// GSAS returns the counts of the node's unit.
func (n *Node) GSAS() gsas.Stats {
	if n.unit == nil {
		return gsas.Stats{}
	}
	return n.unit.Stats()
}
