package sim

import (
	"fmt"
	"math/rand/v2"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/wire"
)

// Disturb changes what happens to the frames that the node sends from now on.
func (n *Node) Disturb(inj link.Injection) { n.link.Inject(inj) }

// Cut makes the node's links lose every frame from now on, or none.
func (n *Node) Cut(down bool) { n.cut = down }

// Part takes the link between the hosts of two nodes down, or up again: while it is down it loses every
// frame. Each node is told (soc.LinkReady) after up to late ns.
func (w *World) Part(a, b int, down bool, late func() int64) {
	pair := [2]int{min(a, b), max(a, b)}
	if w.parted == nil {
		w.parted = map[[2]int]int{}
	}
	if down {
		w.parted[pair]++
	} else {
		w.parted[pair]--
	}
	for _, k := range [][2]int{{a, b}, {b, a}} {
		w.after(late(), func() { w.nodes[k[0]].linkReady(k[1]) })
	}
}

// linkReady tells the node the state of the link to another host's node.
func (n *Node) linkReady(other int) {
	ready := wire.ReadyAll
	if n.world.apart(int(n.id), other) {
		ready = wire.NotReady
	}
	n.Event(&soc.Event{Kind: soc.LinkReady, Destination: uint64(other), Ready: ready})
}

// apart reports whether the link between two nodes is down.
func (w *World) apart(a, b int) bool {
	return len(w.parted) > 0 && w.parted[[2]int{min(a, b), max(a, b)}] > 0
}

// CutLink makes one link of the topology, in both directions, lose every frame from now on, or none. It
// reports whether the topology has the link.
func (w *World) CutLink(a, b int, down bool) (found bool) {
	if w.net == nil {
		return false
	}
	for i := range w.net.outputs {
		if l := &w.net.Links[i]; l.From == a && l.To == b || l.From == b && l.To == a {
			w.net.outputs[i].cut, found = down, true
		}
	}
	return found
}

// Stop stops the node's driver, as SIGSTOP stops pfd, or lets it handle what has come meanwhile.
func (n *Node) Stop(stop bool) {
	n.stopped = stop
	if stop {
		return
	}
	held := n.held
	n.held = nil
	for i := range held {
		*n.world.events.push(n.world.now) = held[i]
	}
}

// Restart starts a new driver, as after pfd was killed: the node lives on, and its processes have no
// domains any more.
func (n *Node) Restart() error {
	for _, d := range n.Domains.Domains() { // a new pfd does not know who had PDIDs
		_ = n.Domains.Destroy(d.Slot, nil)
	}
	if err := n.start(); err != nil {
		return err
	}
	n.Stop(false)
	return nil
}

// Power cuts the node's power, and restores it: it is in its reset state until Restart.
func (n *Node) Power() {
	n.power()
	for other := range n.world.nodes {
		if n.world.apart(int(n.id), other) {
			n.linkReady(other)
		}
	}
}

// Reset resets the node by its register CTRL: it does nothing until Restart.
func (n *Node) Reset() { _ = n.Window(device.PL).Write32(device.PLCtrl, device.CtrlReset) }

// Kill ends a process.
func (n *Node) Kill(p *Process) error {
	n.Driver.Remove(p.Domain.Slot)
	if err := n.Domains.Destroy(p.Domain.Slot, nil); err != nil {
		return fmt.Errorf("node %d: ending a process: %w", n.id, err)
	}
	return nil
}

// Mute withdraws the rights that a process grants to others, or restores them.
func (p *Process) Mute(on bool) {
	v := [4]uint64{}
	if !on {
		for i, peer := range p.Domain.Peers {
			v[i/4] |= uint64(peer) << (16 * (i % 4))
		}
	}
	for k := range v {
		_ = p.node.Window(device.PL).Write64(device.PLPDPeers+32*uint32(p.Domain.Slot)+8*uint32(k), v[k])
	}
}

// Again makes a frame that a node has sent arrive once more, after d ns.
func (w *World) Again(f *wire.Frame, d int64) {
	g := w.pool.Clone(f)
	w.after(d, func() { w.deliver(g) })
}

func (w *World) deliver(f *wire.Frame) {
	if int(f.DstNode) >= len(w.nodes) {
		w.pool.Put(f)
		return
	}
	w.nodes[f.DstNode].Event(&soc.Event{Kind: soc.FrameArrived, Frame: f})
}

// stranger is a node that no world has.
const stranger = device.NodeIDMask

// Stranger delivers an arbitrary frame of a node that does not exist; data in it is for va.
func (w *World) Stranger(rng *rand.Rand, va device.VA) {
	f := w.pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Kind(1 + rng.IntN(5)), Epoch: rng.Uint32() % 4, Link: rng.Uint32() % 4, SrcNode: stranger, DstNode: device.NodeID(rng.IntN(len(w.nodes))),
		SrcPDID: device.PDID(1 + rng.IntN(16)), DstPDID: device.PDID(1 + rng.IntN(16)), SrcInterface: uint8(rng.IntN(64)),
		DstMailbox: uint8(rng.IntN(64)), SrcGeneration: device.Generation(rng.Uint32()), DstGeneration: device.Generation(rng.Uint32()),
		ID: device.TransactionID(rng.IntN(8)), Seq: device.Sequence(rng.IntN(16)), First: device.Sequence(rng.IntN(16)),
		Length: device.PageSize, VA: va, Remaining: device.PageSize, Read: rng.IntN(2) == 0,
	}
	if f.Kind == wire.Data {
		f.Payload = w.pool.Payload(device.PageSize)
		clear(f.Payload)
		f.Present = wire.All(device.PageSize)
	}
	if f.Kind == wire.Message || rng.IntN(4) == 0 {
		f.MessageLen = 1
		f.Message[0] = mailbox.RAPF{Transaction: f.ID, Sequence: f.Seq, Claimed: f.SrcPDID, Fail: rng.IntN(2) == 0}.Encode()
	}
	w.deliver(f)
}

// Misbehave makes a process ring doorbells with arbitrary descriptors, or send arbitrary messages, to
// memory at va.
func (p *Process) Misbehave(rng *rand.Rand, va device.VA) {
	w := p.node.world
	dst := device.NodeID(rng.IntN(len(w.nodes) + 1))
	if rng.IntN(2) == 0 {
		words := make([]uint64, 1+rng.IntN(device.PktzMaxWords))
		for i := range words {
			words[i] = rng.Uint64()
		}
		words[0] = words[0]&^0xff | rng.Uint64()%16
		p.Send(rng.IntN(device.PktzChannels), dst, uint8(rng.IntN(device.Interfaces)), words...)
		return
	}
	d := device.Descriptor{
		Src: p.Base, Dst: va + device.VA(rng.IntN(2)*rng.IntN(1<<20)), Size: uint32(1 + rng.IntN(2*device.BlockSize)), DstNode: dst,
		DstPDID: device.PDID(1 + rng.IntN(64)), DstGeneration: device.Generation(rng.Uint32()), Urgent: rng.IntN(2) == 0, Abort: rng.IntN(4) == 0,
	}
	switch rng.IntN(4) {
	case 0:
		d.Src = device.VA(rng.Uint64())
	case 1:
		d.Dst, d.Size = device.VA(rng.Uint64()), rng.Uint32()
	case 2:
		d.Notify, d.First, d.Last = va+device.VA(rng.IntN(1<<16)), rng.Uint64(), rng.Uint64()
	}
	p.Write(rng.IntN(device.ChannelsPerSlot), d)
}
