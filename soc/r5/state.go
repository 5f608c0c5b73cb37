package r5

import (
	"math"
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/soc/sparse"
	"github.com/exanet/pfd/soc/window"
	"github.com/exanet/pfd/soc/wire"
)

// Limits of the firmware (spec/firmware.md). Values are defined by this project.
const (
	maxDomainIDs   = 256  // transaction IDs that one domain may hold
	keptIDs        = 16   // IDs reserved for every slot, with or without a domain
	maxAttempts    = 64   // retransmissions of a block without an ACK or RAPF for it
	maxRAPFs       = 1024 // RAPFs for one block
	sourceGrace    = 100e9
	backoffFromRow = 3
	maxTwice       = 2 // simultaneous sendings of a block without the retransmission bit
)

// Config describes a firmware.
type Config struct {
	Node   device.NodeID
	VABits int
	// TXFIFO: source faults are reported and pause the block (CAPS[24]).
	TXFIFO bool
	// Windows are the memory windows of the slots; nil means none. A change is followed by Recheck.
	Windows *[device.Slots]window.Set
	// Route reports whether a node can be reached; nil means every node can.
	Route func(device.NodeID) bool
	// Base and Nodes say which nodes are of the same host; 0 nodes: all are.
	Base  device.NodeID
	Nodes uint32
	// Others is shared by the nodes of a host; nil: the node is alone.
	Others Others
	// Options switch off optimizations.
	Options Options
	// IDs is the number of transaction IDs, for tests in which IDs are soon reused; 0 means all
	// 1024.
	IDs int
	// PathFeedback limits the rate of blocks to each node by the time that its acknowledgements take.
	PathFeedback bool
}

// CommandKind says what the firmware asks its node to do.
type CommandKind uint8

// The commands.
const (
	// Send: the PLDMA sends Block.
	Send CommandKind = iota + 1
	// Update: done, status and paused of a channel's descriptor have changed.
	Update
	// Describe: a read channel now carries the transfer of Descriptor.
	Describe
	// Answer: Word goes to mailbox Interface of Node, whose domain of Generation requested a read
	// in Epoch.
	Answer
)

// Command is one request of the firmware to its node.
type Command struct {
	Kind    CommandKind
	Block   wire.Block
	Slot    uint8
	Channel uint8
	Done    uint32
	Status  uint8
	Paused  uint8

	Descriptor device.Descriptor
	Node       device.NodeID
	Interface  uint8
	Generation device.Generation
	Epoch      uint32
	Word       uint64
}

type domain struct {
	pdid       device.PDID
	generation device.Generation
	enabled    bool
	peers      [device.PeersPerSlot]device.PDID
	ids        int
	sending    int // blocks of the medium and low classes with the PLDMA
	reads      readQueue
	crowded    int // read channels missing for peers that were admitted while too many were busy
}

const (
	// passes is how often a class that could issue is passed over for higher classes before it
	// may issue: its share is one issue in eight (defined by this project).
	passes = 7
	// maxSending is the number of medium and low class blocks that a domain may have at the PLDMA
	// at a time (defined by this project): as many as its accesses in flight. A higher priority
	// cannot overtake blocks already at the PLDMA.
	maxSending = 16
)

// scheduler has a queue per class and slot. A domain that may take no ID therefore costs nothing,
// and the domains of one class are served round robin. The bitmaps have a bit per slot, so
// nothing is scanned.
type scheduler struct {
	queues  [classes][device.Slots]list
	links   [device.Channels]links
	waiting [classes]uint16 // slots with channels queued
	last    [classes]int    // slot that issued last
	passed  [classes]int    // issues of higher classes since the class's last one

	below uint16 // slots with fewer IDs than are reserved for them
	room  uint16 // slots with fewer IDs than the maximum
	full  uint16 // slots with maxSending blocks at the PLDMA
}

func (s *scheduler) reset() {
	*s = scheduler{below: 1<<device.Slots - 1, room: 1<<device.Slots - 1}
	for c := range s.queues {
		for i := range s.queues[c] {
			s.queues[c][i] = list{-1, -1}
		}
	}
}

// numbers are the sequence numbers of an ID towards one node: the last one assigned, the last
// one sent, and the last one that the node answered.
type numbers struct {
	last, sent, known device.Sequence
}

// answered records a number that the node has answered. It may be an old number, of a block that
// has ended since: the node has received it nevertheless.
func (n *numbers) answered(s device.Sequence) {
	if s.Newer(n.known) && !s.Newer(n.sent) {
		n.known = s
	}
}

// Firmware is one node's firmware. It belongs to one goroutine.
type Firmware struct {
	cfg         Config
	counts      *[device.Counters]uint64
	timeout     int64 // ns
	guard       int64 // ns
	outstanding int

	domains  [device.Slots]domain
	reserve  int // IDs reserved for slots and not taken by them
	tx       sparse.Table[transaction]
	free     tickets
	timers   [lists]list
	timed    [device.Transactions]links
	ticking  uint32 // lists that are not empty: a bit each
	channels sparse.Table[transfer]
	run      scheduler
	asked    uint64 // read requests
	settled  uint64 // of these, those served, waiting, answered or known already
	now      int64  // as last set by the caller: for ages only
	// seq holds the sequence numbers of each ID towards each node. They belong to the pair and
	// never restart, so a receiver can order all that it receives from one (source, ID).
	seq        map[device.NodeID]*sparse.Table[numbers]
	others     Others
	paths      map[device.NodeID]*path // made when they are needed
	paced      []*path                 // whose next block has a time, and is waited for
	drawn      [device.Transactions]device.Sequence
	out, spare []Command

	ended    tally.Node // transfers; for observers, nothing depends on it
	stamp    int64      // as last set by the caller
	refusals []Refusal
}

// SetNode sets the node's own ID (register NODE_ID).
func (fw *Firmware) SetNode(id device.NodeID) { fw.cfg.Node = id }

// SetTimeout sets the block time-out in microseconds; blocks in flight follow.
func (fw *Firmware) SetTimeout(us uint32) { fw.timeout = max(int64(us), 1) * 1000 }

// SetGuard sets the guard time-out of paused blocks in microseconds.
func (fw *Firmware) SetGuard(us uint32) { fw.guard = max(int64(us), 1) * 1000 }

// SetOutstanding sets the number of blocks in flight per transfer, at least one.
func (fw *Firmware) SetOutstanding(n uint32) {
	fw.outstanding = int(min(max(n, 1), device.Transactions))
}

// Clock sets the time from which the ages of transfers are computed.
func (fw *Firmware) Clock(now int64) { fw.now = now }

// Commands returns the pending commands and clears the list. The slice is valid until the next
// call of Commands. Performing commands may add new ones.
func (fw *Firmware) Commands() []Command {
	out := fw.out
	fw.out, fw.spare = fw.spare[:0], out
	return out
}

// change changes what is known of a node.
func (fw *Firmware) change(node device.NodeID, f func(r *reach)) {
	r := fw.others[node]
	if f(&r); r == (reach{}) {
		delete(fw.others, node)
	} else {
		fw.others[node] = r
	}
	if p := fw.paths[node]; p != nil {
		p.reach = r
	}
}

// path returns the path to a node, which it makes if the node is of another host, or full; nil: there is
// nothing to know.
func (fw *Firmware) path(node device.NodeID) *path {
	p := fw.paths[node]
	if p == nil && (fw.far(node) || fw.cfg.Nodes == 0 && fw.others[node].busy) {
		p = fw.pathTo(node)
	}
	return p
}

// pathTo returns the path to a node, which it makes if there is none.
func (fw *Firmware) pathTo(node device.NodeID) *path {
	p := fw.paths[node]
	if p == nil {
		p = &path{reach: fw.others[node], waiting: list{-1, -1}, held: list{-1, -1}}
		fw.paths[node] = p
	}
	return p
}

// begin assigns a transfer to a channel, ready to be scheduled.
func (fw *Firmware) begin(c int16, d *device.Descriptor) *transfer {
	x := fw.channels.At(int(c))
	slot := int(c) / device.ChannelsPerSlot
	*x = transfer{
		channel: c, live: true, slot: uint8(slot), desc: *d, first: -1,
		pdid: fw.domains[slot].pdid, dst: d.DstPDID, generation: fw.domains[slot].generation,
		blocks: blockCount(d.Dst, d.Size), began: fw.now, kicked: fw.stamp,
	}
	if x.dst == 0 {
		x.dst = x.pdid
	}
	return x
}

// valid checks what can be checked at the doorbell (messages.md 1).
func (fw *Firmware) valid(d *device.Descriptor) bool {
	limit := uint64(1) << uint(fw.cfg.VABits)
	fits := func(va device.VA, n uint64) bool { return uint64(va) < limit && n <= limit-uint64(va) }
	return d.Size != 0 &&
		fits(d.Src, uint64(d.Size)) && fits(d.Dst, uint64(d.Size)) &&
		(d.Notify == 0 || d.Notify%16 == 0 && fits(d.Notify, 16)) &&
		(fw.cfg.Route == nil || fw.cfg.Route(d.DstNode))
}

func (fw *Firmware) update(x *transfer, done uint32) {
	if x.isRead && done == device.DoneOngoing {
		done = device.DoneReadOngoing
	}
	cmd := Command{
		Kind: Update, Slot: x.slot, Channel: uint8(x.channel % device.ChannelsPerSlot), Done: done,
		Paused: uint8(min(x.paused, math.MaxUint8)),
	}
	if done == device.DoneFailed {
		cmd.Status, cmd.Paused = x.status, 0
	}
	fw.out = append(fw.out, cmd)
}

func (fw *Firmware) period(list int) int64 {
	switch {
	case list >= listFar:
		return farPeriod(fw.timeout, list-listFar)
	case list >= listBackoff:
		return int64(1e6) << uint(list-listBackoff)
	case list >= listGuard:
		return fw.guard << uint(list-listGuard)
	default:
		return fw.timeout
	}
}

// await begins the time-out of a block that was sent.
func (fw *Firmware) await(t *transaction, now int64) {
	list := listTimeout
	if r := fw.trip(t); r != nil {
		list = listFar + r.step(fw.timeout)
	}
	fw.enlist(t, list, now)
}

// far reports whether a node is of another host.
func (fw *Firmware) far(node device.NodeID) bool {
	return fw.cfg.Nodes > 0 && uint32(node-fw.cfg.Base) >= fw.cfg.Nodes
}

// trip returns the round trip of a block's path, nil if its node is of the own host.
func (fw *Firmware) trip(t *transaction) *trip {
	if !fw.far(t.node) {
		return nil
	}
	p := fw.paths[t.node]
	if t.short {
		return &p.short
	}
	return &p.long
}

func (fw *Firmware) enlist(t *transaction, list int, now int64) {
	fw.delist(t)
	t.list, t.since = uint8(list), now
	fw.ticking |= 1 << uint(list)
	fw.timers[list].push(fw.timed[:], t.id)
}

func (fw *Firmware) delist(t *transaction) {
	if t.list == listNone {
		return
	}
	if t.list == listHeld {
		fw.paths[t.node].held.remove(fw.timed[:], t.id)
		t.list = listNone
		return
	}
	l := &fw.timers[t.list]
	l.remove(fw.timed[:], t.id)
	if l.head < 0 {
		fw.ticking &^= 1 << t.list
	}
	t.list = listNone
}

// Deadline returns when Expire is due, math.MaxInt64 for never: the minimum over the lists'
// heads.
func (fw *Firmware) Deadline() int64 {
	if fw.cfg.Options.NoCounters {
		return fw.deadlineOfAll()
	}
	d := fw.pacedUntil()
	for left := fw.ticking; left != 0; left &= left - 1 {
		i := bits.TrailingZeros32(left)
		d = min(d, fw.tx.At(int(fw.timers[i].head)).since+fw.period(i))
	}
	return d
}

// pacedUntil returns the first time at which a path that is waited for opens.
func (fw *Firmware) pacedUntil() int64 {
	d := int64(math.MaxInt64)
	for _, p := range fw.paced {
		d = min(d, p.next)
	}
	return d
}

// deadlineOfAll scans every transaction: this is the cost that the lists avoid.
func (fw *Firmware) deadlineOfAll() int64 {
	d := fw.pacedUntil()
	for _, t := range fw.tx.All() {
		if t.list != listNone && t.list != listHeld {
			d = min(d, t.since+fw.period(int(t.list)))
		}
	}
	return d
}
