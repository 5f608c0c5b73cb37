package soc

import (
	"encoding/binary"
	"math"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/queue"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/window"
	"github.com/exanet/pfd/soc/wire"
)

// New returns a node in its reset state.
func New(cfg Config) *Node {
	if cfg.Pool == nil {
		cfg.Pool = new(wire.Pool)
	}
	n := &Node{
		cfg: cfg, id: cfg.ID & device.NodeIDMask,
		timeoutUS: device.TimeoutReset, guardUS: device.GuardReset, outstanding: device.OutstandingReset,
		btcm: cfg.BTCM,
	}
	private := len(n.btcm) < int(device.BTCM.Size())
	if private {
		n.btcm = make([]byte, device.BTCM.Size())
	}
	if cfg.Like != nil && cfg.Like.caps() == n.caps() {
		n.places = cfg.Like.places
	} else {
		n.places = new(places)
	}
	n.cfg.Like = nil
	n.queues = queue.New((*queueHost)(n))
	if cfg.GSAS {
		n.unit = gsas.New((*gsasHost)(n))
		n.unit.SetNode(n.id)
	}
	n.rx.SetLimit(cfg.FIFO)
	n.tx.SetLimit(cfg.FIFO)
	n.smmu = smmu.New(&n.counts)
	n.fw = r5.New(r5.Config{Node: n.id, VABits: cfg.VABits, TXFIFO: !cfg.NoTXFIFO, Route: cfg.Route, Base: cfg.Base, Nodes: cfg.Nodes, Others: cfg.Others, Options: cfg.Firmware, IDs: cfg.IDs, PathFeedback: cfg.PathFeedback, Windows: &n.windows.Sets}, &n.counts)
	tx := &n.tx
	if cfg.NoTXFIFO {
		tx = nil
	}
	n.dma = pldma.New(pldma.Config{
		Node: n.id, VABits: cfg.VABits, Pool: cfg.Pool, SMMU: n.smmu, RX: &n.rx, TX: tx, Counts: &n.counts, Contexts: cfg.Contexts, Windows: &n.windows.Sets,
	}, (*sink)(n))
	n.dma.Reset(cfg.Epoch)
	if private {
		n.freeDescriptors() // the rest is zero: do not touch it
	} else {
		n.clearBTCM()
	}
	return n
}

// sink receives the PLDMA's outputs: its methods append actions or call the firmware.
type sink Node

func (s *sink) add(a Action) { s.out = append(s.out, a) }

func (s *sink) Walk(a *pldma.Access) { s.add(Action{Kind: Walk, Access: a}) }

func (s *sink) Move(a *pldma.Access) { s.add(Action{Kind: Move, Access: a}) }

// Written wakes the waiter for completion words: by the action in the same process, otherwise by
// an event, or by vector 3 and WORDS.
func (s *sink) Written(slot uint8, va device.VA) {
	s.words[slot]++
	if !s.queues.Events() {
		s.irqStatus |= 1 << device.VectorDone
	}
	s.add(Action{Kind: WordsWritten, Slot: slot, VA: va})
	s.queues.Tell(device.Event{Kind: device.EventWords, Index: slot, Address: uint64(va)})
}

func (s *sink) queueAccess(a *queue.Access) { s.add(Action{Kind: QueueAccess, Queue: a}) }

// Transmit sends a frame to the link. With NoWholeBlocks it sends a block's first piece now and
// the others in later steps.
func (s *sink) Transmit(f *wire.Frame) {
	if s.cfg.Firmware.NoWholeBlocks && f.Kind == wire.Data {
		pieces := s.cfg.Pool.Split(f, blockPieces)
		f = pieces[0]
		s.later = append(s.later, pieces[1:]...)
	}
	s.add(Action{Kind: Transmit, Frame: f})
}

// blockPieces is the number of frames that a block is cut into (defined by this project).
const blockPieces = 4

func (s *sink) Sent(id device.TransactionID) { s.fw.Sent(s.now, id) }

func (s *sink) SourceFault(id device.TransactionID) { s.fw.SourceFault(s.now, id) }

// Step handles an event at time now (in ns, never decreasing) and appends the resulting actions
// to out.
func (n *Node) Step(now int64, ev *Event, out []Action) []Action {
	n.now, n.out = now, out
	n.fw.Clock(now)
	n.fw.Forget()
	if len(n.later) > 0 {
		n.out = append(n.out, Action{Kind: Transmit, Frame: n.later[0]})
		n.later = n.later[:copy(n.later, n.later[1:])]
	}
	switch ev.Kind {
	case FrameArrived:
		n.arrived(ev.Frame)
	case Walked:
		n.dma.Walked(ev.Access, smmu.Walk{Absent: ev.Absent, Denied: ev.Denied, Unused: ev.Unused, External: ev.External})
	case Moved:
		bytes := ev.Bytes
		if ev.OK {
			bytes = math.MaxInt
		}
		n.dma.Moved(ev.Access, bytes)
	case DoorbellRung:
		n.copyDescriptor(ev.Slot, ev.Channel, &ev.Words)
		n.ringByWord(ev.Slot, ev.Channel)
	case DescriptorCopied:
		n.copyDescriptor(ev.Slot, ev.Channel, &ev.Words)
	case QueueAccessed:
		n.queues.Answered(ev.Access, ev.OK)
	case AtomicDone:
		if n.unit != nil {
			n.unit.Done(now, ev.Access, ev.Status, ev.Words[:min(max(ev.N, 0), len(ev.Words))])
		}
	case LinkReady:
		n.fw.LinkReady(device.NodeID(ev.Destination), ev.Ready)
	case LinkUp:
		n.linkUp(device.NodeID(ev.Destination))
	case NodeGone:
		n.gone(device.NodeID(ev.Destination))
	case NodeDrains:
		n.fw.Drain(device.NodeID(ev.Destination), ev.OK)
	case MessageSent:
		p := &n.pktz[ev.Interface&(device.Interfaces-1)]
		ch := &p[ev.Channel&(device.PktzChannels-1)]
		ch.destination, ch.payload = ev.Destination, ev.Words
		n.send(ev.Interface&(device.Interfaces-1), ev.Channel&(device.PktzChannels-1), ev.N, ev.Number)
	}
	return n.settle()
}

// settle runs the firmware's loop until it has nothing to do, and raises the interrupts whose
// causes hold.
func (n *Node) settle() []Action {
	if n.fw.Deadline() <= n.now {
		n.fw.Expire(n.now)
	}
	if n.dma.Deadline() <= n.now {
		n.dma.Expire(n.now)
	}
	for {
		n.fw.Schedule()
		cmds := n.fw.Commands()
		if len(cmds) == 0 {
			break
		}
		for i := range cmds {
			n.command(&cmds[i])
		}
	}
	if n.queues.Active() && n.queues.Run((*sink)(n).queueAccess) {
		n.out = append(n.out, Action{Kind: Interrupt, Vector: device.VectorFIFO})
	}
	n.mailRead = false
	n.interrupts()
	out := n.out
	n.out = nil
	return out
}

func (n *Node) command(c *r5.Command) {
	switch c.Kind {
	case r5.Send:
		n.dma.Send(&c.Block)
		return
	case r5.Describe:
		n.describe(c)
		return
	case r5.Answer:
		n.reply(c)
		return
	}
	at := device.BTCMDescriptors + device.PageSize*int(c.Slot) + device.DescriptorSize*int(c.Channel)
	binary.LittleEndian.PutUint32(n.btcm[at+device.DescReserved1:], uint32(c.Status)|uint32(c.Paused)<<device.DescPausedShift)
	binary.LittleEndian.PutUint32(n.btcm[at+device.DescDone:], c.Done)
	n.out = append(n.out, Action{
		Kind: DescriptorChanged, Slot: c.Slot, Channel: c.Channel, Done: c.Done, Status: c.Status, Paused: c.Paused,
	})
	switch {
	case c.Done != device.DoneCompleted && c.Done != device.DoneFailed:
	case n.queues.Events():
		n.queues.Tell(device.Event{Kind: device.EventDone, Index: c.Slot, Channel: c.Channel, Code: c.Status, Status: c.Done})
	default:
		n.irqStatus |= 1 << device.VectorDone
	}
}

// Deadline returns when a Tick is due, math.MaxInt64 for never.
func (n *Node) Deadline() int64 {
	if len(n.later) > 0 || n.mailRead {
		return n.now
	}
	return min(n.fw.Deadline(), n.dma.Deadline())
}

// interrupts latches the causes that hold, unless events report them, and sends each vector whose
// STATUS and not MASK goes from 0 to 1 (spec/hardware.md 3).
func (n *Node) interrupts() {
	if n.queues.Events() {
		n.raise() // causes that were latched before
		return
	}
	if n.smmu.Interrupt() || n.queues.Broken() {
		n.irqStatus |= 1 << device.VectorFault
	}
	if n.rx.Level() > 0 || n.tx.Level() > 0 || n.unit != nil && n.unit.Wanted() {
		n.irqStatus |= 1 << device.VectorFIFO
	}
	if n.driverMail() {
		n.irqStatus |= 1 << device.VectorMailbox
	}
	n.raise()
}

// raise sends the vectors of latched causes that have become unmasked or newly set.
func (n *Node) raise() {
	up := n.irqStatus &^ n.irqMask
	for v := uint8(0); v < device.Vectors; v++ {
		if (up&^n.irqSent)>>v&1 != 0 {
			n.out = append(n.out, Action{Kind: Interrupt, Vector: v})
		}
	}
	n.irqSent = up
}

// arrived takes a frame from the link.
func (n *Node) arrived(f *wire.Frame) {
	if n.ctrl&device.CtrlEnable == 0 || f.DstNode != n.id {
		n.cfg.Pool.Put(f)
		return
	}
	switch f.Kind {
	case wire.Data, wire.Words:
		n.dma.Receive(n.now, f)
		return
	case wire.Ack:
		n.counts[device.RXPackets]++
		n.ack(f)
	case wire.Message:
		n.counts[device.RXPackets]++
		n.message(f)
	case wire.Link:
		n.counts[device.RXPackets]++
		n.dma.Linked(f)
	default:
		n.counts[device.PktStale]++
	}
	n.cfg.Pool.Put(f)
}

func (n *Node) ack(f *wire.Frame) {
	if f.MessageLen != 0 {
		n.refusalArrived(f)
		return
	}
	if f.Epoch != n.dma.Epoch() {
		n.counts[device.AckStale]++
		return
	}
	if f.Code != device.CodeSlaveError {
		n.dma.Forget(f.ID)
	}
	n.fw.Ack(n.now, f.SrcNode, mailbox.Ack{Transaction: f.ID, Code: f.Code, Sequence: f.Seq})
}

// reset performs CTRL.reset: it drops every transaction, empties every FIFO, starts a new epoch
// and clears the configuration; counters keep their values (spec/hardware.md 3).
func (n *Node) reset() {
	epoch := n.dma.Epoch() + 1
	n.fw.Reset()
	n.dma.Reset(epoch)
	for _, f := range n.later {
		n.cfg.Pool.Put(f)
	}
	n.later = n.later[:0]
	n.rx.Reset()
	n.tx.Reset()
	n.smmu.Reset()
	n.queues.Reset()
	n.boxes = [device.Interfaces]box{}
	n.pktz = [device.Interfaces]packetizerPage{}
	n.pktzCfg = [device.Interfaces]uint64{}
	n.mboxCfg, n.evented = [device.Interfaces]uint64{}, 0
	n.pktzProt = [device.Interfaces]uint64{}
	if n.unit != nil {
		n.unit.Reset()
		n.calls = nil
	}
	n.pdCfg = [device.Slots]uint64{}
	n.peers = [device.Slots][4]uint64{}
	n.windows = window.Unit{}
	n.irqStatus, n.irqSent = 0, 0
	n.clearBTCM()
}
