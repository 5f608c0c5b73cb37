package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/wire"
)

// errWatch reports frames on the links that spec/firmware.md and spec/messages.md do not allow.
var errWatch = errors.New("on the links")

// watch judges a scenario by the events outside the machines: the frames on the links, the
// RAPFs of the drivers, and the reports of the channels. It does not use the machines' state,
// and derives itself what they may do.
type watch struct {
	Nobody
	f     *fabric
	uses  map[place]*use
	last  map[route]device.Sequence // the last sequence number seen
	pktz  []map[uint32]uint64       // the drivers' writes to packetizers, by node
	busy  [][device.Slots]uint32
	serve map[channel]*job            // the reads on read channels
	came  map[[2]device.NodeID]uint64 // newest frame that has arrived, by sending order
	met   met
	err   error

	// The frame that a link was just given, before the link changes it.
	class   frameClass
	present uint64
	words   bool
}

// place is a transaction id of a node.
type place struct {
	node device.NodeID
	id   device.TransactionID
}

// channel is a channel of a node's page.
type channel struct {
	node     device.NodeID
	slot, ch int
}

type route struct {
	place
	dst device.NodeID
}

// use is a block that uses a transaction id.
type use struct {
	job    *job
	round  int // of the job, at the beginning
	block  int // equal to the number of blocks: the completion words
	first  device.Sequence
	seq    device.Sequence // as last sent
	at     int64           // when it was last sent
	asked  bool            // a retransmission is allowed
	have   uint64          // packets of this sending so far
	linked bool            // the receiver has reported the link's number for this sending
	paused int64           // when a page fault was reported; 0: not since
	words  bool
	acked  bool
	said   []device.Sequence // answers of the receiver
}

// service is one run of a transfer: a read whose end was not seen may run several times.
type service struct {
	round int
	open  int // unacknowledged blocks
	acked []bool
	words bool // words are acknowledged
	// ending: the run was ended, and its ids are free, except those of blocks that are being
	// read.
	ending bool
}

// met counts the events of a scenario.
type met struct {
	lost, doubled            [classesOfFrame]int
	torn, corrupt, overtaken int
	nacks                    [8]int // by code
	contextsUsedUp           int    // blocks refused because all contexts are in use
	sourceFaults             int    // RAPFs from the sender's own driver
	retransmissions          int
	timeOuts, guards, rapfs  int // reasons of retransmissions
	ackedAgain, wordsAlone   int
	misaligned               int // misaligned first blocks of transfers with several
	readsRefused             int
	links, pieces            int // reported link numbers; further frames of blocks
	channelsBusy, bothBusy   int // moments with all read channels of one node, of two nodes, busy
}

// add adds the counts of another scenario.
func (m *met) add(o *met) {
	for i := range m.lost {
		m.lost[i] += o.lost[i]
		m.doubled[i] += o.doubled[i]
	}
	for i := range m.nacks {
		m.nacks[i] += o.nacks[i]
	}
	for _, p := range []struct{ to, from *int }{
		{&m.torn, &o.torn}, {&m.corrupt, &o.corrupt}, {&m.overtaken, &o.overtaken},
		{&m.contextsUsedUp, &o.contextsUsedUp}, {&m.sourceFaults, &o.sourceFaults}, {&m.retransmissions, &o.retransmissions},
		{&m.timeOuts, &o.timeOuts}, {&m.guards, &o.guards}, {&m.rapfs, &o.rapfs},
		{&m.ackedAgain, &o.ackedAgain}, {&m.wordsAlone, &o.wordsAlone}, {&m.misaligned, &o.misaligned},
		{&m.readsRefused, &o.readsRefused}, {&m.links, &o.links}, {&m.pieces, &o.pieces}, {&m.channelsBusy, &o.channelsBusy}, {&m.bothBusy, &o.bothBusy},
	} {
		*p.to += *p.from
	}
}

// frameClass is a class of frames that a link may lose.
type frameClass int

const (
	dataFrame frameClass = iota
	ackFrame
	nackFrame
	rapfFrame
	readFrame
	answerFrame
	otherFrame
	classesOfFrame
)

// String returns the name of the class.
func (c frameClass) String() string {
	return [...]string{"data", "ACK", "NACK", "RAPF", "read request", "answer to a read", "message"}[c]
}

func classOf(f *wire.Frame) frameClass {
	switch f.Kind {
	case wire.Data, wire.Words:
		return dataFrame
	case wire.Ack:
		switch {
		case f.MessageLen != 0:
			return otherFrame
		case f.Code == device.CodeAck:
			return ackFrame
		}
		return nackFrame
	case wire.Link:
		return otherFrame
	}
	switch mailbox.OpcodeOf(f.Message[0]) {
	case mailbox.OpRAPF:
		return rapfFrame
	case mailbox.OpRead:
		return readFrame
	case mailbox.OpAck:
		return answerFrame
	}
	return otherFrame
}

func newWatch(f *fabric) *watch {
	n := len(f.World.nodes)
	x := &watch{
		f: f, uses: map[place]*use{}, last: map[route]device.Sequence{},
		busy: make([][device.Slots]uint32, n), came: map[[2]device.NodeID]uint64{}, serve: map[channel]*job{},
	}
	for range n {
		x.pktz = append(x.pktz, map[uint32]uint64{})
	}
	return x
}

func (x *watch) wrong(format string, args ...any) {
	if x.err == nil {
		x.err = fmt.Errorf("%w at %d ns: %s", errWatch, x.f.World.now, fmt.Sprintf(format, args...))
	}
}

func (x *watch) Failed() error { return x.err }

// sent processes a frame that a node passes to its link.
func (x *watch) Sent(n *Node, f *wire.Frame) {
	x.class, x.present, x.words = classOf(f), f.Present, f.HasWords
	switch {
	case f.SrcNode != n.SOC.ID():
		x.wrong("node %d sends as node %d", n.SOC.ID(), f.SrcNode)
	case f.Kind == wire.Data || f.Kind == wire.Words:
		x.block(f)
	case f.Kind == wire.Ack && f.MessageLen == 0:
		x.answered(f)
	}
}

// jobAt returns the transfer of a block.
func (x *watch) jobAt(f *wire.Frame) *job {
	for _, p := range x.f.procs {
		if p.node != f.DstNode || p.Domain.PDID != f.DstPDID {
			continue
		}
		for _, j := range p.jobs {
			if j.to == p && (f.Length > 0 && f.VA >= j.desc.Dst && uint64(f.VA-j.desc.Dst) < uint64(j.size) ||
				f.Length == 0 && j.words >= 0 && f.VA == j.desc.Notify) {
				return j
			}
		}
	}
	return nil
}

// service begins a run of a transfer. If its source cannot be paged in, the block that ends it
// may never have been on a link.
func (j *job) service(round int) *service {
	return &service{round: round, acked: make([]bool, j.blocks()), ending: j.badSource}
}

// blocks returns the number of a transfer's blocks.
func (j *job) blocks() int {
	return int((uint64(j.desc.Dst)+uint64(j.size)-1)/device.BlockSize-uint64(j.desc.Dst)/device.BlockSize) + 1
}

// block judges a block that is sent.
func (x *watch) block(f *wire.Frame) {
	j := x.jobAt(f)
	if j == nil {
		x.wrong("node %d sends a block to %v of node %d, where no transfer goes", f.SrcNode, f.VA, f.DstNode)
		return
	}
	if j.run == nil {
		j.run = j.service(0)
	}
	block := x.cut(j, f)
	p := place{f.SrcNode, f.ID}
	r := route{p, f.DstNode}
	u := x.uses[p]
	if u != nil && u.first == f.First && u.seq == f.Seq && u.block == block && f.Kind == wire.Data && u.have&f.Present == 0 {
		u.have |= f.Present // another part of the same sending
		x.met.pieces++
		u.words = u.words || f.HasWords
		return
	}
	if u != nil && u.linked && u.first == f.First && u.seq == f.Seq && u.block == block {
		u.linked, u.have = f.Present != wire.All(len(f.Payload)), f.Present // the same sending, now with the link's number
		return
	}
	again := u != nil && u.job == j && u.round == j.run.round && u.first == f.First && u.block == block
	if last, ok := x.last[r]; ok && !f.Seq.Newer(last) {
		if x.f.World.cfg.Firmware.NoRetransmissionBit && again && f.Seq != last {
			return // both were read concurrently, and the older one took longer
		}
		if x.f.World.cfg.Firmware.NoWholeBlocks && f.Present&1 == 0 {
			return // a later part of an earlier sending, perhaps of an ended block
		}
		x.wrong("id %d of node %d: sequence number %d after %d", f.ID, f.SrcNode, f.Seq, last)
	}
	x.last[r] = f.Seq
	if again {
		x.again(f, u)
	} else {
		x.begin(f, j, u, block)
		u = x.uses[p]
	}
	u.seq, u.at, u.asked, u.paused, u.have = f.Seq, x.f.World.now, false, 0, f.Present
	if f.HasWords {
		u.words = true
		for b, acked := range j.run.acked {
			if !acked && b != block {
				x.wrong("the completion words are sent, but block %d is not acknowledged", b)
				break
			}
		}
	}
}

// cut checks that a frame is a block according to spec/firmware.md "Segmentation", with the
// source's bytes, and returns its number.
func (x *watch) cut(j *job, f *wire.Frame) int {
	base, end := uint64(j.desc.Dst), uint64(j.desc.Dst)+uint64(j.size)
	if f.Length == 0 {
		x.met.wordsAlone++
		if f.Kind != wire.Words || !f.HasWords {
			x.wrong("an empty block without completion words")
		}
		return j.blocks()
	}
	from := uint64(f.VA)
	to := min((from/device.BlockSize+1)*device.BlockSize, end)
	block := from/device.BlockSize - base/device.BlockSize
	if from != base && from%device.BlockSize != 0 || uint64(f.Length) != to-from || uint64(f.Remaining) != end-from ||
		uint64(f.Block) != block || f.Last != (to == end) {
		x.wrong("a transfer of %d bytes to %v: block %d is %d bytes to %v, %d left, last %v", j.size, j.desc.Dst, f.Block, f.Length, f.VA, f.Remaining, f.Last)
		return 0
	}
	if from%device.BlockSize != 0 && to != end {
		x.met.misaligned++
	}
	if !bytes.Equal(f.Payload, j.want[from-base:to-base]) {
		x.wrong("block %d of a transfer of %d bytes: other bytes than the source's", block, j.size)
	}
	return int(block)
}

// begin judges the first sending of a block.
func (x *watch) begin(f *wire.Frame, j *job, u *use, block int) {
	if u != nil && !u.acked && u.round == u.job.run.round && !u.job.run.ending {
		x.wrong("id %d of node %d is used twice", f.ID, f.SrcNode)
	}
	for _, o := range x.uses {
		if o.job == j && o.round == j.run.round && o.block == block && !o.acked {
			x.wrong("block %d of a transfer has two ids", block)
		}
	}
	x.uses[place{f.SrcNode, f.ID}] = &use{job: j, round: j.run.round, block: block, first: f.First}
	j.run.open++
	window := int(x.f.World.cfg.Outstanding)
	if j.size <= device.BlockSize {
		window = max(window, 2)
	}
	if j.run.open > window {
		x.wrong("%d blocks of a transfer are in flight, OUTSTANDING is %d", j.run.open, window)
	}
}

// again judges a retransmission: the receiver must have requested it, or the time-out or the
// guard time-out must have passed.
func (x *watch) again(f *wire.Frame, u *use) {
	c, now := &x.f.World.cfg, x.f.World.now
	x.met.retransmissions++
	timeout, guard := int64(c.TimeoutUS)*1000, int64(c.GuardUS)*1000
	if c.Firmware.NoRetransmissionBit {
		return // the time-out starts before the source is read
	}
	switch {
	case u.acked:
		// Its acknowledgement arrived while the next sending was being read.
	case u.asked:
	case u.paused == 0 && now-u.at >= timeout, u.paused != 0 && u.paused-u.at >= timeout:
		x.met.timeOuts++
	case u.paused != 0 && now-u.paused >= guard:
		x.met.guards++
	default:
		x.wrong("id %d of node %d: sequence number %d is sent %d ns after %d without a request", f.ID, f.SrcNode, f.Seq, now-u.at, u.seq)
	}
}

// answered judges a receiver's answer: one per sequence number, and an acknowledgement only for
// bytes in memory.
func (x *watch) answered(f *wire.Frame) {
	u := x.uses[place{f.DstNode, f.ID}]
	if u == nil || u.job.to.node != f.SrcNode || u.first.Newer(f.Seq) || f.Seq.Newer(u.seq) {
		return // of an ended use
	}
	if slices.Contains(u.said, f.Seq) {
		x.wrong("two answers to sequence number %d of id %d of node %d", f.Seq, f.ID, f.DstNode)
	}
	u.said = append(u.said, f.Seq)
	x.met.nacks[f.Code&7]++
	j := u.job
	if f.Code == device.CodeNoContext {
		x.noContext(f)
	}
	if f.Code != device.CodeAck || j.own != nil || u.round != j.run.round {
		return
	}
	if u.acked {
		x.met.ackedAgain++
	}
	data := j.to.Data
	if u.words && (word(data[j.words:]) != j.desc.First || word(data[j.words+8:]) != j.desc.Last) {
		x.wrong("the completion words are acknowledged but not in memory")
	}
	if u.block < j.blocks() {
		from, to := j.part(u.block)
		if !bytes.Equal(data[j.dst+from:j.dst+to], j.want[from:to]) {
			x.wrong("block %d of a transfer of %d bytes is acknowledged but not in memory", u.block, j.size)
		}
	}
}

// part returns the range of a transfer's bytes in a block.
func (j *job) part(block int) (from, to int) {
	at := int(uint64(j.desc.Dst) % device.BlockSize)
	return max(block*device.BlockSize-at, 0), min((block+1)*device.BlockSize-at, j.size)
}

// noContext counts the blocks that are refused because all contexts are in use.
func (x *watch) noContext(f *wire.Frame) {
	all := device.Contexts
	if c := x.f.World.cfg.Contexts; c > 0 {
		all = c
	}
	if x.f.World.nodes[f.SrcNode].SOC.OpenContexts() >= all {
		x.met.contextsUsedUp++
	}
}

// arrived processes a frame that reaches a node, before the node gets it.
func (x *watch) Arrived(f *wire.Frame, order uint64) {
	ends := [2]device.NodeID{f.SrcNode, f.DstNode}
	if order < x.came[ends] {
		x.met.overtaken++
	}
	x.came[ends] = max(order, x.came[ends])
	if u := x.uses[place{f.DstNode, f.ID}]; f.Kind == wire.Link && u != nil && u.seq == f.Seq {
		u.linked = true
		x.met.links++
	}
	switch classOf(f) {
	case ackFrame, nackFrame:
		x.received(f)
	case rapfFrame:
		if m, err := mailbox.DecodeRAPF(f.Message[0]); err == nil && f.DstMailbox == device.MailboxRequest {
			x.rapf(f.DstNode, f.SrcNode, f.SrcPDID, m)
		}
	}
}

// received processes an answer that has reached the sender.
func (x *watch) received(f *wire.Frame) {
	u := x.uses[place{f.DstNode, f.ID}]
	if u == nil || u.job.to.node != f.SrcNode || u.first.Newer(f.Seq) || f.Seq.Newer(u.seq) {
		return // of an earlier use
	}
	j := u.job
	if u.round != j.run.round {
		return // of an ended run
	}
	switch {
	case f.Code == device.CodeAck:
		if !u.acked {
			u.acked = true
			j.run.open--
		}
		if u.block < len(j.run.acked) {
			j.run.acked[u.block] = true
		}
		j.run.words = j.run.words || u.words
	case f.Seq != u.seq:
	case f.Code == device.CodeSlaveError:
		if u.paused == 0 {
			u.paused = x.f.World.now
		}
	case f.Code == device.CodeNoContext || f.Code == device.CodeCorrupt || f.Code == device.CodeBufferFull:
		u.asked = true
	default:
		j.run.ending = true
	}
}

// rapf processes a request for retransmission that has reached the sender, from a packetizer of
// node src that is wired to pdid.
func (x *watch) rapf(at, src device.NodeID, pdid device.PDID, m mailbox.RAPF) {
	u := x.uses[place{at, m.Transaction}]
	if u == nil || m.Claimed != pdid || u.seq.Newer(m.Sequence) || u.round != u.job.run.round {
		return
	}
	j := u.job
	if src == j.to.node && pdid == j.to.Domain.PDID || src == at && pdid == j.from.Domain.PDID {
		x.met.rapfs++
		u.asked = u.asked || !m.Fail
		j.run.ending = j.run.ending || m.Fail
	}
}

// wrote processes a driver's write to its node's packetizers: RAPFs for the own node do not use
// a link.
func (x *watch) Wrote(n *Node, off uint32, v uint64) {
	own := n.SOC.ID()
	mem := x.pktz[own]
	mem[off] = v
	if off%device.PktzChannelStride != device.PktzSend {
		return
	}
	base := off - device.PktzSend
	node, box, _ := packetizer.SplitDestination(mem[base+device.PktzDestination])
	m, err := mailbox.DecodeRAPF(mem[base+device.PktzPayload])
	if err != nil || node != own || box != device.MailboxRequest {
		return
	}
	// The driver has a packetizer for each slot, wired to the slot's domain.
	if slot := off / device.PageSize; slot < device.Slots && n.process[slot] != nil {
		x.met.sourceFaults++
		x.rapf(own, own, n.process[slot].Domain.PDID, m)
	}
}

// reported processes the report of a channel about its transfer.
func (x *watch) Reported(n *Node, a *soc.Action) {
	slot, ch := int(a.Slot), int(a.Channel)
	over := a.Done == device.DoneFailed || a.Done == device.DoneCompleted
	j := x.jobOf(n, slot, ch, over)
	if ch >= device.WriteChannels {
		bit := uint32(1) << (ch - device.WriteChannels)
		busy := &x.busy[n.SOC.ID()][slot]
		if *busy &^= bit; !over {
			*busy |= bit
			x.countBusy(n, *busy)
		}
	}
	if j == nil || j.run == nil || !over {
		return
	}
	if a.Done == device.DoneCompleted {
		for b, acked := range j.run.acked {
			if !acked {
				x.wrong("a transfer of %d bytes is complete, but block %d is not acknowledged", j.size, b)
				break
			}
		}
		if j.words >= 0 && !j.run.words {
			x.wrong("a transfer of %d bytes is complete, but its words are not acknowledged", j.size)
		}
	}
	j.run = j.service(j.run.round + 1)
}

// jobOf returns the transfer of a channel. A read channel tells which read it has only when it
// begins; when it reports the end it may already have the next one.
func (x *watch) jobOf(n *Node, slot, ch int, over bool) *job {
	p := n.process[slot]
	if ch < device.WriteChannels {
		for _, j := range x.f.jobs {
			if !j.read && j.from.Process == p && int(j.tag) == ch {
				return j
			}
		}
		return nil
	}
	c := channel{n.SOC.ID(), slot, ch}
	j := x.serve[c]
	if over {
		delete(x.serve, c)
		return j
	}
	if j == nil {
		d := n.SOC.Channel(slot, ch).Descriptor
		for _, k := range x.f.jobs {
			if k.read && k.from.Process == p && k.to.node == d.DstNode && k.desc.Dst == d.Dst {
				j = k
			}
		}
		x.serve[c] = j
	}
	return j
}

// allBusy reports whether so many read channels of a domain are busy that its only reader gets
// no more: the domain admits itself and 15 others, and one channel is reserved for each of
// these that reads nothing.
func allBusy(busy uint32) bool {
	const channels, kept = device.ChannelsPerSlot - device.WriteChannels, 15
	return bits.OnesCount32(busy) >= channels-kept
}

// countBusy counts the moments at which all read channels of a node are busy, and those of
// another node that reads from it as well.
func (x *watch) countBusy(n *Node, busy uint32) {
	if !allBusy(busy) {
		return
	}
	x.met.channelsBusy++
	for id := range x.busy {
		if device.NodeID(id) == n.SOC.ID() {
			continue
		}
		for _, other := range x.busy[id] {
			if allBusy(other) {
				x.met.bothBusy++
			}
		}
	}
}

// carried counts what a link does to a frame.
func (x *watch) Carried(out []link.Delivery) {
	switch len(out) {
	case 0:
		x.met.lost[x.class]++
	case 2:
		x.met.doubled[x.class]++
	}
	for _, d := range out {
		if d.Frame.Corrupt != 0 {
			x.met.corrupt++
		}
		if x.class == dataFrame && (d.Frame.Present != x.present || x.words && d.Frame.WordsMissing) {
			x.met.torn++
		}
	}
}
