package soc

import (
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
)

// driverMail reports whether one of the driver's mailboxes has a message. It looks at them only
// after a message has arrived there.
func (n *Node) driverMail() bool {
	if !n.mailed {
		return false
	}
	for i := device.MailboxDriver; i < device.MailboxProcess; i++ {
		if n.boxes[i].level > 0 {
			return true
		}
	}
	n.mailed = false
	return false
}

// send performs SEND of a packetizer channel. Interfaces whose PDID is 0 belong to the R5s
// (spec/hardware.md 3): they send nothing here. For the others, the fields of PKTZ_CFG are
// stamped over the payload's wired bits and sent beside the packet; the sender cannot change them
// (messages.md 4).
func (n *Node) send(iface, ch, count int, number uint16) {
	c := &n.pktz[iface][ch]
	c.use++
	c.queued = false
	cfg := n.pktzCfg[iface]
	conf := packetizer.DecodeConfig(cfg)
	node, box, generation := packetizer.SplitDestination(c.destination)
	if n.ctrl&device.CtrlEnable == 0 || !conf.Enable || conf.PDID == device.PDIDFirmware || count < 1 || count > device.PktzMaxWords ||
		box == device.MailboxAck || box >= device.Interfaces ||
		(iface >= device.MailboxThread || conf.GSAS) && !n.threadMay(iface, box, conf.GSAS) ||
		!n.routed(node, box) {
		c.status = device.PktzRefused
		n.counts[device.MboxRefused]++
		return
	}
	c.status = device.PktzFree
	f := n.cfg.Pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Message, SrcNode: n.id, SrcInterface: uint8(iface), SrcPDID: conf.PDID,
		SrcGeneration: n.wired(iface), DstGeneration: generation,
		DstNode: node, DstMailbox: box, ID: device.TransactionID(uint16(ch) | uint16(c.use)<<2),
	}
	f.Message, f.MessageLen = c.payload, uint8(count)
	if iface >= device.MailboxThread {
		f.Remaining = uint32(number)
		packetizer.StampThread(cfg, n.pktzProt[iface], ch, number, f.Message[:count])
	} else {
		if iface >= device.MailboxProcess && box >= device.MailboxProcess {
			f.Remaining = toldNumber | uint32(number)
		}
		packetizer.Stamp(cfg, f.Message[:count])
	}
	if box == device.MailboxRead {
		if n.leaves(uint8(iface), f) {
			n.cfg.Pool.Put(f)
			return
		}
		open, served := n.opened(uint8(iface), f)
		if !open { // the tag is in use, or too many reads are open
			c.status = device.PktzRefused
			n.counts[device.MboxRefused]++
		}
		if !open || served {
			n.cfg.Pool.Put(f)
			return
		}
	}
	n.counts[device.TXPackets]++
	if node == n.id {
		// A message within the node crosses no link, so STATUS is known at once.
		f.Epoch = n.dma.Epoch()
		if !n.deliver(f) {
			c.status = device.PktzRefused
		}
		n.cfg.Pool.Put(f)
		return
	}
	if f.Epoch = n.dma.PeerEpoch(node); box == device.MailboxRead {
		f.Epoch = n.dma.Epoch() // the answer carries it back
	}
	n.out = append(n.out, Action{Kind: Transmit, Frame: f})
}

// routed reports whether a message has a way to a node. A read request to a node that is gone is answered
// instead.
func (n *Node) routed(node device.NodeID, box uint8) bool {
	if gone, _ := n.fw.Leaving(node); gone {
		return box == device.MailboxRead
	}
	return n.cfg.Route == nil || n.cfg.Route(node)
}

// gone handles the loss of a node: transfers to it, and reads from it, end with status 10.
func (n *Node) gone(node device.NodeID) {
	n.fw.Gone(node)
	n.dma.ReadsFrom(node, node, func(_ int, r *pldma.OpenRead) { n.answerGone(r.Interface, node, r.Tag) })
}

// leaves answers a read request to a node that is gone, or a new one to a node that drains, and reports
// whether it did: the request is not sent.
func (n *Node) leaves(iface uint8, f *wire.Frame) bool {
	gone, leaving := n.fw.Leaving(f.DstNode)
	if !leaving {
		return false
	}
	m, err := mailbox.DecodeReadRequest(f.Message[:f.MessageLen])
	if slot := n.dma.SlotOf(f.SrcPDID, f.SrcGeneration); err != nil || !gone && (m.Size == 0 || slot >= 0 && n.dma.Reading(slot, iface, m.Tag)) {
		return false
	}
	n.answerGone(iface, f.DstNode, m.Tag)
	return true
}

// answerGone answers a read of a process of this node in place of its target's firmware. Like that one's
// answer it may have to be dropped; the process then repeats its request, and is answered again.
func (n *Node) answerGone(iface uint8, target device.NodeID, tag uint16) {
	f := n.cfg.Pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Message, Epoch: n.dma.Epoch(), SrcNode: target, DstNode: n.id, DstMailbox: iface, DstGeneration: n.wired(int(iface)),
	}
	f.Message[0] = mailbox.Ack{Transaction: device.TransactionID(tag), Code: device.CodeReserved, Sequence: device.StatusGone}.Encode()
	f.MessageLen = 1
	n.deliver(f)
	n.cfg.Pool.Put(f)
}

// toldNumber in Remaining of a Message frame says that the sender is a process that is told of a
// refusal by a message of its own mailbox: [15:0] is then its number (defined by this project).
const toldNumber = 1 << 16

// message takes a Message frame from the link. A refusal goes back to the sender's STATUS, or to
// a process's mailbox, as an Ack frame with a message length (defined by this project).
func (n *Node) message(f *wire.Frame) {
	if n.deliver(f) {
		return
	}
	r := n.cfg.Pool.Frame()
	r.Header = wire.Header{
		Kind: wire.Ack, Epoch: f.Epoch, SrcNode: n.id, DstNode: f.SrcNode, DstMailbox: f.SrcInterface,
		DstGeneration: f.SrcGeneration, ID: f.ID, Code: device.CodeBufferFull, Remaining: f.Remaining,
	}
	r.MessageLen = 1
	n.counts[device.TXPackets]++
	n.out = append(n.out, Action{Kind: Transmit, Frame: r})
}

func (n *Node) refusalArrived(f *wire.Frame) {
	if int(f.DstMailbox) >= len(n.pktz) || n.wired(int(f.DstMailbox)) != f.DstGeneration {
		return
	}
	if f.Remaining&toldNumber != 0 && f.DstMailbox >= device.MailboxProcess {
		n.refused(int(f.DstMailbox), f.SrcNode, uint16(f.Remaining)) // not by STATUS: each is told once
		return
	}
	c := &n.pktz[f.DstMailbox][f.ID%device.PktzChannels]
	if to, _, _ := packetizer.SplitDestination(c.destination); c.use == uint8(f.ID>>2) && to == f.SrcNode {
		c.status = device.PktzRefused
		if c.queued {
			n.queues.Tell(device.Event{Kind: device.EventRefused, Index: f.DstMailbox, Channel: uint8(f.ID % device.PktzChannels)})
		}
	}
}

// refused tells the process of interface m that a node has refused its message of a number.
func (n *Node) refused(m int, by device.NodeID, number uint16) {
	r := wire.Frame{Header: wire.Header{SrcNode: by}, MessageLen: 1}
	r.Message[0] = mailbox.Refusal{Number: number}.Encode()
	if n.mboxCfg[m]&device.CfgEnable == 0 || !n.putMail(m, &r) {
		n.counts[device.MboxRefused]++
		return
	}
	n.out = append(n.out, Action{Kind: MailArrived, Interface: uint8(m)})
}

// deliver puts a message into its mailbox if its sender may write there (spec/hardware.md 3, "Who
// may write"). It returns false if the message is refused.
func (n *Node) deliver(f *wire.Frame) bool {
	if f.MessageLen == 0 || f.MessageLen > device.PktzMaxWords {
		n.counts[device.MsgDropped]++
		return true
	}
	words := f.Message[:f.MessageLen]
	op := mailbox.OpcodeOf(words[0])
	ok := false
	switch m := int(f.DstMailbox); {
	case m == device.MailboxRequest:
		switch op {
		case mailbox.OpRAPF:
			n.rapf(f)
			return true
		case mailbox.OpDoorbell:
			if f.SrcNode == n.id {
				n.ring(f)
				return true
			}
		}
	case m == device.MailboxRead:
		if op == mailbox.OpRead {
			n.read(f)
			return true
		}
	case m == device.MailboxGSAS && n.unit != nil:
		ok = f.SrcInterface >= device.MailboxThread && n.request(f, words)
	case m >= device.MailboxDriver && m < device.MailboxProcess:
		ok = (f.SrcInterface < device.MailboxProcess || f.SrcPDID == 0) && n.putMail(m, f)
	case m >= device.MailboxThread && m < device.Interfaces:
		if ok = n.reaches(m, f) && n.putMail(m, f); ok {
			n.out = append(n.out, Action{Kind: MailArrived, Interface: uint8(m)})
		}
	case m >= device.MailboxProcess && m < device.MailboxThread && f.SrcInterface < device.MailboxThread:
		slot := n.admitted(m, f)
		// An R5 answers reads that are open. It refuses nothing by a message: refusalArrived makes those.
		if slot >= 0 && f.SrcPDID == 0 && (op == mailbox.OpRefused || op == mailbox.OpAck && !n.answered(slot, m, f)) {
			n.counts[device.MsgDropped]++
			return true
		}
		if ok = slot >= 0 && n.putMail(m, f); ok {
			n.out = append(n.out, Action{Kind: MailArrived, Interface: uint8(m)})
		}
	}
	if !ok {
		n.counts[device.MboxRefused]++
	}
	return ok
}

// admitted returns the slot of the domain that owns mailbox m, or -1 if the message may not go
// there: it names another generation, or its sender is neither an R5 (PDID 0), nor the domain's
// own PDID, nor a PDID that PD_PEERS or a memory window of the domain admits.
func (n *Node) admitted(m int, f *wire.Frame) int {
	cfg := n.mboxCfg[m]
	if cfg&device.CfgEnable == 0 {
		return -1
	}
	own := device.PDID(cfg & device.PDIDMask)
	generation := f.DstGeneration
	if generation == 0 && f.SrcPDID != 0 {
		generation = n.wired(m) // the sender knows the mailbox only
	}
	slot := n.dma.SlotOf(own, generation)
	if slot >= 0 && f.SrcPDID != 0 && f.SrcPDID != own && !slices.Contains(n.dma.Domain(slot).Peers[:], f.SrcPDID) &&
		!n.windows.Sets[slot].Grants(f.SrcPDID, device.RightMessages) {
		return -1
	}
	return slot
}

func (n *Node) putMail(m int, f *wire.Frame) bool {
	msg := mail{
		source: mailbox.Source{Node: f.SrcNode, Interface: f.SrcInterface, PDID: f.SrcPDID, Words: int(f.MessageLen)},
		words:  f.Message,
	}
	most := device.MailboxDepth
	if m >= device.MailboxProcess && f.SrcPDID == device.PDIDFirmware {
		most *= 2 // messages of processes leave room for the firmware's answers
	}
	ok := n.boxes[m].put(&msg, most)
	n.mailed = n.mailed || m < device.MailboxProcess
	switch {
	case !ok || !n.queues.Events():
	case n.evented>>m&1 == 0:
		n.queues.TellMail(uint8(m))
	case n.boxes[m].level == 1:
		n.tellLong(m)
	}
	return ok
}

// tellLong tells the driver if mailbox m, whose messages go into events, has one at its head that
// does not fit.
func (n *Node) tellLong(m int) {
	if n.queues.Events() && n.evented>>m&1 != 0 && n.boxes[m].long() {
		n.queues.TellMail(uint8(m))
	}
}

func (n *Node) rapf(f *wire.Frame) {
	m, err := mailbox.DecodeRAPF(f.Message[0])
	if err != nil {
		n.counts[device.MsgDropped]++
		return
	}
	if f.Epoch != n.dma.Epoch() {
		n.counts[device.RAPFRx]++
		n.counts[device.RAPFStale]++
		return
	}
	// Only the wired domain beside the packet is trusted, not the message's own fields.
	m.PDID, m.Generation = f.SrcPDID, f.SrcGeneration
	n.fw.RAPF(n.now, f.SrcNode, m)
}

func (n *Node) ring(f *wire.Frame) {
	d, err := mailbox.DecodeDoorbell(f.Message[0])
	if err != nil {
		n.counts[device.MsgDropped]++
		return
	}
	if n.dma.SlotOf(f.SrcPDID, f.SrcGeneration) != d.Slot() {
		n.counts[device.DoorbellDenied]++
		return
	}
	n.doorbell(d.Slot(), int(d.Channel)%device.ChannelsPerSlot)
}

// ringByWord handles the doorbell word of a slot. Without the fast path it is handled like a
// doorbell message.
func (n *Node) ringByWord(slot, ch int) {
	if !n.cfg.Firmware.NoFastPath {
		n.doorbell(slot, ch)
		return
	}
	if slot < 0 || slot >= device.Slots || ch < 0 || ch >= device.WriteChannels {
		n.counts[device.DoorbellDenied]++
		return
	}
	f := n.cfg.Pool.Frame()
	f.SrcNode, f.DstNode, f.DstMailbox = n.id, n.id, device.MailboxRequest
	own := n.dma.Domain(slot)
	f.SrcPDID, f.SrcGeneration = own.PDID, own.Generation
	f.Message[0] = mailbox.Doorbell{PDID: f.SrcPDID, Channel: uint16(slot*device.ChannelsPerSlot + ch)}.Encode()
	f.MessageLen = 1
	n.ring(f)
	n.cfg.Pool.Put(f)
}

// PacketizerStatus returns STATUS of a packetizer channel.
func (n *Node) PacketizerStatus(iface, ch int) uint8 { return n.pktz[iface][ch].status }

// TakeMail takes the head message of mailbox m; false if it is empty.
func (n *Node) TakeMail(m int) (mailbox.Source, [device.PktzMaxWords]uint64, bool) {
	b := &n.boxes[m]
	if b.level == 0 {
		return mailbox.Source{}, [device.PktzMaxWords]uint64{}, false
	}
	msg := b.ring[b.head]
	b.drop()
	return msg.source, msg.words, true
}
