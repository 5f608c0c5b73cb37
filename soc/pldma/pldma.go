// Package pldma is the node's DMA engine: the send part reads blocks from the initiator's memory
// and makes frames of them, the receive part checks, translates, writes and answers
// (spec/firmware.md "PLDMA"; 000 §3.2.2, 002 §IV). It is pure: memory accesses are requests that
// leave through Sink, and their answers arrive as events, as on AXI.
//
// docs/papers.md lists the papers that comments cite by number.
package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
)

// maxAccesses is the number of a slot's memory accesses in flight: an equal share of 256 (000
// appendix A), so that a domain whose memory hangs does not use up another's share.
const maxAccesses = 256 / device.Slots

// keptHigh is how many of a slot's accesses in flight are reserved for the high class (defined by
// this project). A higher priority cannot overtake accesses in flight, so a short transfer would
// otherwise wait for a walk and a move of the domain's large ones.
const keptHigh = 4

// Access is one request to memory, as on AXI. The engine first requests its walk and, if all its
// pages are present, its move; both are answered by ID.
type Access struct {
	ID    uint32
	Slot  uint8 // domain slot whose address space VA is in
	Write bool
	// Ordered: Data is two words of 8 bytes, the second visible only after the
	// first (completion words).
	Ordered bool
	// High: of a short or urgent transfer.
	High bool
	// First: this reads the first block of a transfer. The performer should not join it with
	// other accesses, so that a fault at its destination is found early.
	First bool
	VA    device.VA
	Data  []byte // read into, or written from

	kind     accessKind
	bank     int8
	orphan   bool   // the node was reset: only the buffer is still in use
	gone     bool   // the domain whose memory it reads no longer exists
	stalled  uint64 // the page that faulted: it waits for RESUME
	queued   bool
	children int
	parent   *Access
	block    wire.Block // send part
	ctx      *context   // receive part
	frame    *wire.Frame
	next     *Access // waiting queue, free list
}

// Pages returns the number of pages that the access touches.
func (a *Access) Pages() int { return pagesOf(a.VA, len(a.Data)) }

// pagesOf returns the number of pages of n bytes at va.
func pagesOf(va device.VA, n int) int {
	return int((va.Offset() + uint64(n) + device.PageSize - 1) >> device.PageShift)
}

type accessKind uint8

const (
	readBlock accessKind = iota + 1
	writeData
	writeWords
	part // a run of pages of an access some of whose pages are ignored
)

// Sink receives the engine's outputs. Its methods only record them.
type Sink interface {
	// Walk requests the translation of a's pages; Walked answers.
	Walk(a *Access)
	// Move requests that the bytes of a be moved; Moved answers.
	Move(a *Access)
	// Transmit passes a frame to the link, which owns it from then on.
	Transmit(f *wire.Frame)
	// Sent reports that block id is no longer being sent.
	Sent(id device.TransactionID)
	// SourceFault reports that block id could not be read and was not sent.
	SourceFault(id device.TransactionID)
	// Written reports that completion words were written to a domain's memory.
	Written(slot uint8, va device.VA)
}

// Domain describes a protection-domain slot (PD_CFG, PD_PEERS).
type Domain struct {
	PDID       device.PDID
	Generation device.Generation
	Enabled    bool
	Peers      [device.PeersPerSlot]device.PDID
}

// admits reports whether src may reach domain d (spec/hardware.md 3).
func (d *Domain) admits(src device.PDID) bool {
	if src == d.PDID {
		return true
	}
	for _, p := range d.Peers {
		if p != 0 && p == src {
			return true
		}
	}
	return false
}

// maxWaiting is the number of waiting writes to a slot's memory that the receive part has buffers
// for (defined by this project). Beyond it a block is refused with code 7. Writes of the high
// class are counted separately, so that large transfers into a domain do not cause a short one to
// be refused.
const maxWaiting = 32

// Config describes an engine.
type Config struct {
	Node   device.NodeID
	VABits int
	Pool   *wire.Pool
	SMMU   *smmu.SMMU
	RX, TX *fifo.FIFO // TX nil: no TXFIFO
	Counts *[device.Counters]uint64
	// Contexts is the number of receive contexts, for tests that exhaust them; 0 means all 128.
	Contexts int
}

// Engine is one node's PLDMA. It belongs to one goroutine.
type Engine struct {
	cfg     Config
	sink    Sink
	epoch   uint32
	domains [device.Slots]Domain

	accesses []*Access // by ID
	freeList *Access
	slots    [device.Slots]accessQueue
	held     [device.Transactions]heldBlock

	recv  receiver
	reads [device.Slots]openReads

	links  map[device.NodeID]uint32 // link numbers that other nodes assigned to this life
	number uint32                   // the last number assigned to another node's life
}

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

// Epoch returns the node's current epoch (messages.md 5).
func (e *Engine) Epoch() uint32 { return e.epoch }

// Domain returns the domain of a slot.
func (e *Engine) Domain(slot int) *Domain { return &e.domains[slot] }

// SlotOf returns the slot of the domain with this PDID and generation, -1 if there is none.
func (e *Engine) SlotOf(pdid device.PDID, g device.Generation) int {
	for i := range e.domains {
		if d := &e.domains[i]; d.Enabled && d.PDID == pdid && d.Generation == g {
			return i
		}
	}
	return -1
}

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

// InFlight returns the number of a slot's accesses whose answers are outstanding.
func (e *Engine) InFlight(slot int) int { return e.slots[slot].inflight }

// heldBlock keeps a block's bytes as they were read until the block is acknowledged: a block that
// met a page fault is retransmitted without reading its source again (a replay buffer, defined by
// this project).
type heldBlock struct {
	block   wire.Block // as it was sent last
	payload []byte
	share   *wire.Share
}

// Forget releases the bytes held for a block: it will not be retransmitted or, if it is, it will
// be read again.
func (e *Engine) Forget(id device.TransactionID) {
	if h := &e.held[id%device.Transactions]; h.share != nil {
		e.cfg.Pool.Release(h.payload, h.share)
		*h = heldBlock{}
	}
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

func (e *Engine) transmit(b *wire.Block, payload []byte) {
	f := e.cfg.Pool.Frame()
	f.Header = b.Header
	f.Epoch, f.Link = e.epoch, e.links[b.DstNode]
	f.HasWords, f.Completion = b.HasWords, b.Completion
	f.Payload = payload
	if h := &e.held[b.ID]; h.share != nil {
		f.Shared = h.share
		f.Shared.Holders++
	}
	f.Present = wire.All(len(payload))
	e.cfg.Counts[device.TXPackets] += uint64(wire.Packets(len(payload)))
	if f.HasWords {
		e.cfg.Counts[device.TXPackets]++
	}
	if b.Length == 0 {
		f.Kind = wire.Words
	}
	e.sink.Transmit(f)
}

// Linked handles the link number that another node assigned to this life, and resends the block
// that had been sent without it.
func (e *Engine) Linked(f *wire.Frame) {
	if f.Epoch != e.epoch || f.ID >= device.Transactions {
		e.cfg.Counts[device.AckStale]++
		return
	}
	e.links[f.SrcNode] = f.Link
	if h := &e.held[f.ID]; h.share != nil && h.block.DstNode == f.SrcNode && h.block.Seq == f.Seq {
		e.transmit(&h.block, h.payload)
	}
}

// read completes a read access.
func (e *Engine) read(a *Access, ok bool, failed uint64) {
	id := a.block.ID
	switch {
	case a.orphan:
		e.cfg.Pool.PutPayload(a.Data)
	case a.gone:
		e.cfg.Pool.PutPayload(a.Data)
		e.sink.SourceFault(id)
	case ok:
		e.Forget(id)
		e.held[id] = heldBlock{block: a.block, payload: a.Data, share: e.cfg.Pool.Share()}
		e.transmit(&a.block, a.Data)
		e.sink.Sent(id)
	default:
		e.push(e.cfg.TX, &a.block.Header, e.cfg.Node, a.block.SrcPDID, a.VA, failed, a.block.Source)
		e.cfg.Pool.PutPayload(a.Data)
		e.sink.SourceFault(id)
	}
	e.drop(a)
}

// push adds one FIFO entry for each failed page of an access at va. base is the address of the
// block's first byte on the faulting side, from which the header's remaining bytes are counted.
func (e *Engine) push(q *fifo.FIFO, h *wire.Header, src device.NodeID, pdid device.PDID, va device.VA, failed uint64, base device.VA) {
	if q == nil {
		return
	}
	for i := 0; failed>>uint(i) != 0; i++ {
		if failed>>uint(i)&1 == 0 {
			continue
		}
		page := va.Page() + device.VA(i)<<device.PageShift
		ext := h.Remaining
		if page > base {
			if off := uint64(page - base); off < uint64(ext) {
				ext -= uint32(off)
			} else {
				ext = 0
			}
		}
		switch q.Push(device.FaultEntry{
			Source: src, Transaction: h.ID, Sequence: h.Seq, PDID: pdid,
			Page: uint64(page) >> device.PageShift, Response: 2,
		}, ext) {
		case fifo.Pushed:
			e.cfg.Counts[device.FIFOPush]++
		case fifo.Duplicate:
			e.cfg.Counts[device.FIFODedup]++
		case fifo.Overflowed:
			e.cfg.Counts[device.FIFOOverflows]++
		}
	}
}
