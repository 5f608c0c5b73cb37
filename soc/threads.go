package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/wire"
)

// Threads have the packetizers and mailboxes 32..63. They ask the GSAS units of all nodes for
// operations (docs/spec/gsas.md 2; 003 §2.2.2).

// wired returns the generation sent with each of a packetizer's messages: that of the domain in
// slot n, for interfaces n and 16 + n, and in the slot of its thread for the others; 0 if there is
// none.
func (n *Node) wired(iface int) device.Generation {
	slot := iface % device.Slots
	if iface >= device.MailboxThread {
		_, slot = device.SplitPktzProt(n.pktzProt[iface])
	}
	if d := n.dma.Domain(slot); d.Enabled {
		return d.Generation
	}
	return 0
}

// threadMay reports whether an interface may send to a mailbox: threads, in form 1, to units and to
// each other.
func (n *Node) threadMay(iface int, box uint8, form1 bool) bool {
	return n.unit != nil && iface >= device.MailboxThread && form1 && (box == device.MailboxGSAS || box >= device.MailboxThread)
}

// reaches reports whether a message may go to a thread's mailbox: it comes from a unit (PDID 0) or a
// thread, has the protection ID of the thread's tree, and means the generation of the thread's domain,
// or 0 if the sender is a thread that does not know it.
func (n *Node) reaches(m int, f *wire.Frame) bool {
	cfg, own := n.mboxCfg[m], n.wired(m)
	if n.unit == nil || cfg&device.CfgEnable == 0 || own == 0 {
		return false
	}
	unit := f.SrcPDID == device.PDIDFirmware
	if !unit && f.SrcInterface < device.MailboxThread || f.DstGeneration != own && (unit || f.DstGeneration != 0) {
		return false
	}
	r, _ := atomics.DecodeRequest(f.Message[:1]) // of any message, and answers have it at the same place
	return uint32(r.Protection) == device.MboxProtection(cfg)
}

// endThreads turns off the threads of a slot.
func (n *Node) endThreads(slot int) {
	if n.unit == nil {
		return
	}
	for i := device.MailboxThread; i < device.Interfaces; i++ {
		if _, s := device.SplitPktzProt(n.pktzProt[i]); s == slot {
			n.pktzCfg[i], n.mboxCfg[i], n.boxes[i] = 0, 0, box{}
			n.evented &^= 1 << i
		}
	}
}

// request passes a message of mailbox 4 to the unit. It returns false if the unit is off.
func (n *Node) request(f *wire.Frame, words []uint64) bool {
	from := gsas.Source{Node: f.SrcNode, Interface: f.SrcInterface, Generation: f.SrcGeneration, Number: uint16(f.Remaining)}
	return n.unit.Request(n.now, &from, words)
}

func (n *Node) loadGSAS(t *device.Target) uint64 {
	switch {
	case n.unit == nil:
		return 0
	case t.Offset == device.PLPktzProt:
		return n.pktzProt[t.Index]
	}
	return n.unit.Load(t.Offset)
}

func (n *Node) storeGSAS(t *device.Target, value uint64) {
	if t.Offset == device.PLPktzProt {
		n.pktzProt[t.Index] = value
		return
	}
	n.unit.Store(n.now, t.Offset, value)
}
