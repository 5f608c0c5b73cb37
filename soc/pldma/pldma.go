// Package pldma is the node's DMA engine: the send part reads blocks from the initiator's memory
// and makes frames of them, the receive part checks, translates, writes and answers
// (spec/firmware.md "PLDMA"; 000 §3.2.2, 002 §IV). It is pure: memory accesses are requests that
// leave through Sink, and their answers arrive as events, as on AXI.
//
// docs/papers.md lists the papers that comments cite by number.
package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// New returns an engine in its reset state.
func New(cfg Config, sink Sink) *Engine {
	if cfg.Contexts <= 0 || cfg.Contexts > device.Contexts {
		cfg.Contexts = device.Contexts
	}
	e := &Engine{cfg: cfg, sink: sink}
	e.initReceiver()
	return e
}

// Reset drops all contexts and waiting accesses and starts a new epoch. Accesses in flight become
// orphans: their answers only end them.
func (e *Engine) Reset(epoch uint32) {
	e.epoch = epoch
	e.links = make(map[device.NodeID]uint32)
	if e.number == 0 {
		e.number = epoch // random, and so different from that of the node's former life
	}
	for i := range e.slots {
		q := &e.slots[i]
		for _, a := range []*Access{q.high.head, q.usual.head} {
			for a != nil {
				next := a.next
				e.discard(a)
				a = next
			}
		}
		*q = accessQueue{inflight: q.inflight}
	}
	e.reads = [device.Slots]openReads{}
	for _, a := range e.accesses {
		switch {
		case a.stalled != 0:
			e.settle(a)
			e.discard(a)
		case a.kind != 0:
			a.orphan = true
			a.ctx = nil
		}
	}
	for id := range e.held {
		e.Forget(device.TransactionID(id))
	}
	e.domains = [device.Slots]Domain{}
	e.initReceiver()
}

// SetNode sets the node's own ID.
func (e *Engine) SetNode(id device.NodeID) { e.cfg.Node = id }

// SetTimeout follows TIMEOUT_US.
func (e *Engine) SetTimeout(us uint32) { e.recv.timeout = max(int64(us), 1) * 1000 }

// SetDomain follows PD_CFG. When a slot is disabled or assigned to another domain, nothing of the
// former domain remains: its contexts, open reads and bytes held for retransmission end, and
// accesses in flight move nothing more and are not counted. The firmware must have failed the
// slot's transfers before.
func (e *Engine) SetDomain(slot int, pdid device.PDID, g device.Generation, enabled bool) {
	d := &e.domains[slot]
	if d.PDID == pdid && d.Generation == g && d.Enabled == enabled {
		return
	}
	d.PDID, d.Generation, d.Enabled = pdid, g, enabled
	e.reads[slot] = openReads{}
	e.endContexts(func(c *context) bool { return int(c.slot) == slot })
	for _, a := range e.accesses {
		if a.kind == readBlock && int(a.Slot) == slot {
			a.gone = true
		}
	}
	for id := range e.held {
		if h := &e.held[id]; h.share != nil && int(h.block.Slot) == slot {
			e.Forget(device.TransactionID(id))
		}
	}
}

// SetPeers follows PD_PEERS: blocks from PDIDs that the slot no longer admits end. Data of reads
// is admitted by the open read instead.
func (e *Engine) SetPeers(slot int, peers *[device.PeersPerSlot]device.PDID) {
	d := &e.domains[slot]
	d.Peers = *peers
	e.endContexts(func(c *context) bool {
		return int(c.slot) == slot && !c.header.Read && !d.admits(c.header.SrcPDID)
	})
}

// Send sends a block, after reading it unless its bytes are still held. Sent or SourceFault
// answers.
func (e *Engine) Send(b *wire.Block) {
	if b.Length == 0 {
		e.Forget(b.ID)
		e.transmit(b, nil)
		e.sink.Sent(b.ID)
		return
	}
	if h := &e.held[b.ID]; h.share != nil {
		if h.block.First == b.First && h.block.DstNode == b.DstNode && len(h.payload) == int(b.Length) {
			h.block = *b
			e.transmit(b, h.payload)
			e.sink.Sent(b.ID)
			return
		}
		e.Forget(b.ID)
	}
	a := e.newAccess(readBlock)
	a.Slot, a.VA, a.block = b.Slot, b.Source, *b
	a.High = b.Urgent || b.Short()
	a.First = b.Block == 0
	a.Data = e.cfg.Pool.Payload(int(b.Length))
	e.submit(a)
}
