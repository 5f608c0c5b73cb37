package soc

import (
	"encoding/binary"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
)

// Reads at both ends (spec/firmware.md "Read path"): the initiator's node records which reads are
// open when its packetizer sends the request, and admits data of open reads only; the target's
// firmware serves the read.

// opened records a read that is being requested. A request that no target would accept passes:
// its answer carries the reason.
func (n *Node) opened(iface uint8, f *wire.Frame) (open, served bool) {
	m, err := mailbox.DecodeReadRequest(f.Message[:f.MessageLen])
	if err != nil || m.Size == 0 {
		return true, false
	}
	slot := n.dma.SlotOf(f.SrcPDID, f.SrcGeneration)
	if slot < 0 {
		return false, false
	}
	target := m.Target
	if target == 0 {
		target = f.SrcPDID
	}
	return n.dma.OpenRead(slot, pldma.OpenRead{
		Interface: iface, Tag: m.Tag, Node: f.DstNode, PDID: target, Generation: m.TargetGeneration, Src: m.Src, Dst: m.Dst, Size: m.Size,
		Notify: m.Notify, First: m.First, Last: m.Last,
	})
}

// answered handles the answer of a target's firmware to a read, on its way to the mailbox of the
// process in a slot. It returns false if the answer is of a former epoch or must not be received
// yet; the process then repeats its request.
func (n *Node) answered(slot, m int, f *wire.Frame) bool {
	a, err := mailbox.DecodeAnswer(f.Message[0])
	if err != nil || f.Epoch != n.dma.Epoch() {
		return false
	}
	if a.Sequence == 0 {
		// Refused, and to be requested again: the read stays open. The refusal may be late or
		// duplicated, and the read may already be being served.
		return true
	}
	return n.dma.CloseRead(slot, uint8(m), uint16(a.Transaction), f.SrcNode)
}

// Uses reports whether the node has written to a node of another host (r5.Firmware.Writes), or reads from it.
func (n *Node) Uses(node device.NodeID) bool {
	uses := n.fw.Writes(node)
	n.dma.ReadsFrom(node, node, func(int, *pldma.OpenRead) { uses = true })
	return uses
}

// linkUp handles a new link to a node. Requests of reads may be lost with the former one: they are sent again. A
// target drops a request that it has.
func (n *Node) linkUp(node device.NodeID) {
	n.fw.LinkUp(node)
	n.dma.ReadsFrom(node, node, func(slot int, r *pldma.OpenRead) {
		d := n.dma.Domain(slot)
		f := n.cfg.Pool.Frame()
		f.Header = wire.Header{
			Kind: wire.Message, Epoch: n.dma.Epoch(), SrcNode: n.id, SrcInterface: r.Interface, SrcPDID: d.PDID, SrcGeneration: d.Generation,
			DstNode: node, DstMailbox: device.MailboxRead,
		}
		m := mailbox.ReadRequest{
			PDID: d.PDID, Tag: r.Tag, Size: r.Size, Src: r.Src, Dst: r.Dst, Notify: r.Notify, First: r.First, Last: r.Last, Target: r.PDID, TargetGeneration: r.Generation,
		}.Encode()
		f.MessageLen = uint8(copy(f.Message[:], m[:]))
		n.counts[device.TXPackets]++
		n.out = append(n.out, Action{Kind: Transmit, Frame: f})
	})
}

// Underway counts the transfers of this node to the nodes first to last, and the reads between them, that
// have not ended.
func (n *Node) Underway(first, last device.NodeID) int {
	sum := n.fw.Underway(first, last)
	n.dma.ReadsFrom(first, last, func(int, *pldma.OpenRead) { sum++ })
	return sum
}

// read handles a read request from mailbox 2.
func (n *Node) read(f *wire.Frame) {
	m, err := mailbox.DecodeReadRequest(f.Message[:f.MessageLen])
	if err != nil {
		n.counts[device.MsgDropped]++
		return
	}
	m.PDID, m.Generation = f.SrcPDID, f.SrcGeneration // only the wired values are trusted
	n.fw.Read(f.SrcNode, f.SrcInterface, f.Epoch, m)
}

// describe writes a read's descriptor into its channel, for observers.
func (n *Node) describe(c *r5.Command) {
	at := device.BTCMDescriptors + device.PageSize*int(c.Slot) + device.DescriptorSize*int(c.Channel)
	for i, w := range c.Descriptor.Words() {
		binary.LittleEndian.PutUint64(n.btcm[at+8*i:], w)
	}
}

// reply sends the firmware's answer to a read. Its source PDID is 0, which no process has.
func (n *Node) reply(c *r5.Command) {
	f := n.cfg.Pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Message, Epoch: c.Epoch, SrcNode: n.id, DstNode: c.Node, DstMailbox: c.Interface, DstGeneration: c.Generation,
	}
	f.Message[0], f.MessageLen = c.Word, 1
	n.counts[device.TXPackets]++
	n.out = append(n.out, Action{Kind: Transmit, Frame: f})
}
