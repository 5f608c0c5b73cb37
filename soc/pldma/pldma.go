// Package pldma is the node's DMA engine: the send part reads blocks from the initiator's memory
// and makes frames of them, the receive part checks, translates, writes and answers
// (spec/firmware.md "PLDMA"; 000 §3.2.2, 002 §IV). It is pure: memory accesses are requests that
// leave through Sink, and their answers arrive as events, as on AXI.
//
// docs/papers.md lists the papers that comments cite by number.
package pldma

import (
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/window"
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
	for id := range e.held.All() {
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
	for id, h := range e.held.All() {
		if h.share != nil && int(h.block.Slot) == slot {
			e.Forget(device.TransactionID(id))
		}
	}
}

// SetPeers follows PD_PEERS: blocks that the slot no longer admits end.
func (e *Engine) SetPeers(slot int, peers *[device.PeersPerSlot]device.PDID) {
	e.domains[slot].Peers = *peers
	e.Recheck(slot)
}

// Recheck ends the blocks that neither PD_PEERS nor a memory window of the slot admits any more.
func (e *Engine) Recheck(slot int) {
	e.endContexts(func(c *context) bool { return int(c.slot) == slot && !e.stillAdmits(c) })
}

// Withdrawing reports whether blocks to a range that the slot no longer admits are still being
// written.
func (e *Engine) Withdrawing(slot int, va device.VA, bytes uint64) bool {
	return slices.ContainsFunc(e.recv.ending, func(c *context) bool {
		return int(c.slot) == slot && !e.stillAdmits(c) &&
			(window.Overlap(c.header.VA, uint64(c.header.Length), va, bytes) || c.haveWords && window.Overlap(c.completion.VA, wordsSize, va, bytes))
	})
}

// stillAdmits reports whether a context's slot admits its block. Data of reads is admitted by the
// open read instead.
func (e *Engine) stillAdmits(c *context) bool {
	words := &c.completion
	if !c.haveWords {
		words = nil
	}
	return c.header.Read || e.admits(int(c.slot), &c.header, words)
}

// admits reports whether a slot admits a block, and its completion words if they are known: its
// sender may reach the domain, or memory windows admit all of it.
func (e *Engine) admits(slot int, h *wire.Header, words *wire.Completion) bool {
	if e.domains[slot].admits(h.SrcPDID) {
		return true
	}
	if e.cfg.Windows == nil {
		return false
	}
	w := &e.cfg.Windows[slot]
	return w.Admits(h.SrcPDID, device.RightWrite, h.VA, uint64(h.Length)) &&
		(words == nil || w.Admits(h.SrcPDID, device.RightWrite, words.VA, wordsSize))
}

// wordsSize is the size of the completion words (spec/messages.md 5).
const wordsSize = 16

// Send sends a block, after reading it unless its bytes are still held. Sent or SourceFault
// answers.
func (e *Engine) Send(b *wire.Block) {
	if b.Length == 0 {
		e.Forget(b.ID)
		e.transmit(b, nil)
		e.sink.Sent(b.ID)
		return
	}
	if h := e.held.At(int(b.ID)); h.share != nil {
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
