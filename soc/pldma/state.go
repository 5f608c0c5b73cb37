package pldma

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/sparse"
	"github.com/exanet/pfd/soc/window"
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

// accessQueue is a slot's accesses in flight and those waiting for room; accesses of the high
// class go first.
type accessQueue struct {
	inflight    int
	waiting     int // waiting writes, without those of the high class
	waitingHigh int // waiting writes of the high class
	high, usual accessList
}

// room reports whether one more access may begin.
func (q *accessQueue) room(high bool) bool {
	if high {
		return q.inflight < maxAccesses
	}
	return q.inflight < maxAccesses-keptHigh
}

// waits returns the count of waiting writes of a class.
func (q *accessQueue) waits(high bool) *int {
	if high {
		return &q.waitingHigh
	}
	return &q.waiting
}

type accessList struct{ head, tail *Access }

func (l *accessList) put(a *Access) {
	if l.tail != nil {
		l.tail.next = a
	} else {
		l.head = a
	}
	l.tail = a
}

func (l *accessList) take() *Access {
	a := l.head
	if a == nil {
		return nil
	}
	if l.head = a.next; l.head == nil {
		l.tail = nil
	}
	a.next = nil
	return a
}

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
	// Windows are the memory windows of the slots; nil means none. A change is followed by Recheck.
	Windows *[device.Slots]window.Set
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
	held     sparse.Table[heldBlock]

	recv  receiver
	reads [device.Slots]openReads

	links  map[device.NodeID]uint32 // link numbers that other nodes assigned to this life
	number uint32                   // the last number assigned to another node's life
}

// heldBlock keeps a block's bytes as they were read until the block is acknowledged: a block that
// met a page fault is retransmitted without reading its source again (a replay buffer, defined by
// this project).
type heldBlock struct {
	block   wire.Block // as it was sent last
	payload []byte
	share   *wire.Share
}

// OpenReads is the number of reads that the processes of a slot may have open: the target's
// channels plus the places in its queue (defined by this project).
const OpenReads = 64

// OpenRead is a read that a process of this node has requested: data of reads enters a slot only
// while its read is open (spec/hardware.md 3, PD_PEERS).
type OpenRead struct {
	Interface   uint8 // packetizer that sent the request
	Tag         uint16
	Node        device.NodeID     // target
	PDID        device.PDID       // target's
	Generation  device.Generation // target's
	Src, Dst    device.VA
	Size        uint32
	Notify      device.VA
	First, Last uint64
}

// match reports whether a block of a read belongs to r, and whether it carries r's completion
// words.
func (r *OpenRead) match(f *wire.Header, hasWords bool, w *wire.Completion) (ok, words bool) {
	if f.SrcNode != r.Node || f.SrcPDID != r.PDID || f.SrcGeneration != r.Generation {
		return false, false
	}
	words = hasWords && w.VA == r.Notify && w.First == r.First && w.Last == r.Last
	if f.Length == 0 {
		return words, words
	}
	return f.VA >= r.Dst && uint64(f.VA-r.Dst)+uint64(f.Length) <= uint64(r.Size), words
}

type openReads struct {
	used  uint64
	reads []OpenRead // OpenReads, or nil before the first
	next  int        // where the next one goes, if that place is free
	// served: closed by their completion words. They stay known until their place is reused: a
	// process that does not see the words at once repeats its request.
	served uint64
	// closing: the completion words are being written; only their own block is still admitted.
	closing uint64
}

// record is the receiver's memory of one (source node, transaction ID), even without an open
// context.
type record struct {
	known    bool
	answered bool // newest has been answered
	acked    bool // this use of the id was acknowledged
	newest   device.Sequence
	first    device.Sequence // first sequence number of the current use
	ctx      *context
}

// source is the receiver's state for one node. Sequence numbers restart with each life of a node,
// and packets of a former life may still arrive. Epochs are random and have no order, so the
// receiver identifies the current life by a link number: it assigns the number to a life, and
// only a node alive at that time can learn it (defined by this project). Packets of a former life
// never carry the number offered last, and neither end needs a clock. Each link has its own
// number: a node that lies or is absent affects no other.
type source struct {
	epoch, link        uint32 // of the current life; link 0: none yet
	nextEpoch, offered uint32 // of the life that may be the next
	records            sparse.Table[record]
}

// context is a block being received: key (source node, transaction id).
type context struct {
	rec        *record
	header     wire.Header
	slot       uint8
	dead       bool // ended: its remaining accesses move nothing more and are not counted
	nacked     bool
	got, want  uint64 // data packets
	writing    int    // accesses in flight
	haveWords  bool
	wordsOut   bool
	wordsIn    bool
	draining   bool // the words wait for late blocks of former reads to be written
	hasWords   bool
	completion wire.Completion
	began      int64 // first packet, ns
	touched    int64 // last packet, ns
	prev, next *context
}

type receiver struct {
	now      int64 // time of the frame being received
	timeout  int64 // ns; a context ends after twice that without a packet
	sources  map[device.NodeID]*source
	byDomain map[device.PDID]int // contexts that a source domain holds
	bySlot   [device.Slots]int   // contexts to a slot
	reserve  int                 // contexts reserved for slots and not taken by them
	open     int
	draining int
	head     *context // least recently touched
	tail     *context
	free     *context
	ending   []*context // dead, with a write in flight
}

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

// InFlight returns the number of a slot's accesses whose answers are outstanding.
func (e *Engine) InFlight(slot int) int { return e.slots[slot].inflight }

// PeerEpoch returns the last epoch received from a node, 0 if none: messages to the node carry it
// back (messages.md 5).
func (e *Engine) PeerEpoch(n device.NodeID) uint32 {
	if s := e.recv.sources[n]; s != nil && s.link != 0 {
		return s.epoch
	}
	return 0
}
