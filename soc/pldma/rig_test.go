package pldma

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/fifo"
	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/soc/wire"
)

const (
	own     = device.NodeID(1)
	peer    = device.NodeID(2)
	mine    = device.PDID(7) // in slot 0
	theirs  = device.PDID(8)
	base    = device.VA(0x7f00_0000_0000)
	pages   = 64
	timeout = int64(10e6) // ns
	epoch   = uint32(5)   // of the peer

	generation = device.Generation(0x1001) // of the domains here
)

// rig is an engine alone, with memory that responds when the test says so.
type rig struct {
	*testing.T
	e      *Engine
	pool   wire.Pool
	counts [device.Counters]uint64
	rx, tx fifo.FIFO
	now    int64

	mem    []byte
	absent map[int]bool // pages
	stop   map[int]bool // bytes at which a move stops
	walks  []*Access
	moves  []*Access
	order  []Access // moves that were made, in order
	frames []*wire.Frame
	sent   []device.TransactionID
	faults []device.TransactionID // source faults
	words  int
	links  map[[2]uint32]uint32 // by node and epoch
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	r := &rig{T: t, mem: make([]byte, pages*device.PageSize), absent: map[int]bool{}, links: map[[2]uint32]uint32{}}
	s := smmu.New(&r.counts)
	s.StoreGlobal(device.SCR0, 0, device.SCR0GFRE|device.SCR0GFIE|device.SCR0USFCFG)
	for n := range device.Slots {
		s.StoreGlobal(device.SMR, n, device.SMRValid|uint64(n))
		s.StoreGlobal(device.S2CR, n, uint64(n))
		s.StoreBank(device.SCTLR, n, device.SCTLRDriver)
	}
	cfg := Config{Node: own, VABits: 48, Pool: &r.pool, SMMU: s, RX: &r.rx, TX: &r.tx, Counts: &r.counts}
	for _, c := range change {
		c(&cfg)
	}
	r.e = New(cfg, r)
	r.e.Reset(99)
	r.e.SetTimeout(uint32(timeout / 1000))
	r.e.domains[0] = Domain{PDID: mine, Generation: generation, Enabled: true, Peers: [device.PeersPerSlot]device.PDID{theirs}}
	return r
}

func (r *rig) Walk(a *Access)                      { r.walks = append(r.walks, a) }
func (r *rig) Move(a *Access)                      { r.moves = append(r.moves, a) }
func (r *rig) Transmit(f *wire.Frame)              { r.frames = append(r.frames, f) }
func (r *rig) Sent(id device.TransactionID)        { r.sent = append(r.sent, id) }
func (r *rig) SourceFault(id device.TransactionID) { r.faults = append(r.faults, id) }
func (r *rig) Written(uint8, device.VA)            { r.words++ }

// walk answers the oldest walk, move the oldest move.
func (r *rig) walk() {
	a := r.walks[0]
	r.walks = r.walks[1:]
	missing := uint64(0)
	for i := range a.Pages() {
		if r.absent[int(a.VA.Page()-base)/device.PageSize+i] {
			missing |= 1 << uint(i)
		}
	}
	r.e.Walked(a.ID, smmu.Walk{Absent: missing})
}

func (r *rig) move() {
	a := r.moves[0]
	r.moves = r.moves[1:]
	r.order = append(r.order, *a)
	at, n := int(a.VA-base), 0
	for n < len(a.Data) && !r.stop[at+n] {
		n++
	}
	if a.Write {
		copy(r.mem[at:], a.Data[:n])
	} else {
		copy(a.Data[:n], r.mem[at:])
	}
	r.e.Moved(a.ID, n)
}

// settle answers all memory requests.
func (r *rig) settle() {
	r.Helper()
	for len(r.walks)+len(r.moves) > 0 {
		for len(r.walks) > 0 {
			r.walk()
		}
		for len(r.moves) > 0 {
			r.move()
		}
	}
	if err := r.e.Audit(); err != nil {
		r.Fatal(err)
	}
}

// answers returns the answers sent since the last call.
func (r *rig) answers() []mailbox.Ack {
	var all []mailbox.Ack
	for _, f := range r.frames {
		if f.Kind == wire.Ack {
			all = append(all, mailbox.Ack{Transaction: f.ID, Code: f.Code, Sequence: f.Seq})
		}
	}
	r.frames = nil
	return all
}

// frame returns a frame with all packets of a block of n bytes to offset at of the memory. Byte i
// of the memory should become fill(i).
func (r *rig) frame(id device.TransactionID, seq device.Sequence, at, n int, change ...func(*wire.Frame)) *wire.Frame {
	f := r.pool.Frame()
	f.Header = wire.Header{
		Kind: wire.Data, Epoch: epoch, SrcNode: peer, SrcPDID: theirs, DstNode: own, DstPDID: mine, DstGeneration: generation,
		ID: id, Seq: seq, First: 1, Length: uint16(n), VA: base + device.VA(at), Remaining: uint32(n), Last: true,
	}
	f.Payload = r.pool.Payload(n)
	for i := range f.Payload {
		f.Payload[i] = fill(at + i)
	}
	f.Present = wire.All(n)
	for _, c := range change {
		c(f)
	}
	return f
}

// link returns the number that the engine assigns to a life of a node; the node learns it by
// sending a frame without it.
func (r *rig) link(node device.NodeID, epoch uint32) uint32 {
	k := [2]uint32{uint32(node), epoch}
	if r.links[k] == 0 {
		f := r.pool.Frame()
		f.Kind, f.SrcNode, f.Epoch = wire.Data, node, epoch
		r.e.Receive(r.now, f)
		if n := len(r.frames) - 1; n >= 0 && r.frames[n].Kind == wire.Link {
			r.links[k] = r.frames[n].Link
			r.frames = r.frames[:n]
		}
	}
	return r.links[k]
}

func fill(i int) byte { return byte(i*7 + i>>8 + 1) }

// receive passes a frame with the number of its link to the engine.
func (r *rig) receive(f *wire.Frame) {
	if f.Link == 0 {
		f.Link = r.link(f.SrcNode, f.Epoch)
	}
	r.e.Receive(r.now, f)
}

// holds reports whether bytes of the memory have the values that frames carry.
func (r *rig) holds(from, n int) bool {
	for i := from; i < from+n; i++ {
		if r.mem[i] != fill(i) {
			return false
		}
	}
	return true
}
