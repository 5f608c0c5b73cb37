package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/r5"
	"github.com/exanet/pfd/soc/wire"
)

// churn is a scenario of permanent change: destinations are reused, transfers aborted, rights
// withdrawn, nodes reset and powered off, frames arrive again much later, and a neighbour sends
// arbitrary messages. Processes end and others follow with the same slot and PDID or with
// another one; in half of the seeds they run the same program, which makes the same reads. Each
// word of a source names its transfer, so each written word is judged: by the transfer that it
// names, by its place, and by the earlier acknowledgements. When the disturbances end, all
// processes must reach all others again.
type churn struct {
	Nobody
	World *World
	rng   *rand.Rand
	seats []*seat
	all   []*move
	lives []int // number of lives of each node
	up    []int // the life in which each node was last started
	late  bool  // disturbances have ended
	again bool  // the processes of a seat run the same program
	err   error

	sends  map[sending]*piece
	firsts map[sending]*piece // by the first number of the use
	serial uint64             // uses of ids so far
	uses   map[usage]uint64   // the newest use of an id that a process's node acknowledged
	acked  map[lifeAt]int     // the newest life of a node that it acknowledged

	windowRng *rand.Rand                  // nil: the seed has no memory windows
	guests    map[guestAccess]device.PDID // writes in flight that only a window admitted: of whom

	linkRng *rand.Rand // nil: the links are never down

	// Events that the scenario met, for its test.
	Parts, Kills, Powers, Resets, Aborts, Withdrawn, Replayed, Writes, Complete, Opened, Guests int
}

// errChurn reports a forbidden byte, acknowledgement or silence.
var errChurn = errors.New("rule violated")

// Sizes of a seat's memory: sources of transfers in flight, then destinations.
const (
	churnBase  = device.VA(0x7f00_0000_0000)
	churnMost  = 24 << 10 // bytes of a transfer
	churnPlace = 4        // concurrent transfers of a source
	churnFrom  = churnPlace * churnMost
	churnPages = churnFrom/device.PageSize + 20
	churnSteps = 70
)

// seat is a place where one process follows another.
type seat struct {
	node  int
	uid   uint32
	p     *Process // nil: no process at present
	place [churnPlace]bool
	chans [device.WriteChannels]*move
	tag   uint16
	mute  bool       // its peers' rights are withdrawn
	reads *rand.Rand // the reads of its process, if it runs the same program

	windows, closing []*device.MemoryWindow // whose withdrawal is not answered; that are being withdrawn
}

// move is one transfer.
type move struct {
	id       uint64
	read     bool
	at, from *seat // seats of the initiator and of the source
	src, dst *Process
	place    int
	desc     device.Descriptor
	tag      uint16
	got      []bool // words that have landed
	sends    []*piece
	ended    bool
	done     uint32
	status   uint8
	closed   bool // the target's application has seen its end and reuses its memory
}

// sending identifies a transmission of a block: its number in one life of its node, whose epoch
// an acknowledgement carries back. piece is the block.
type sending struct {
	node  device.NodeID
	epoch uint32
	id    device.TransactionID
	seq   device.Sequence
}

type piece struct {
	move     *move
	at, size int // place in the transfer, bytes
	life     int
	id       device.TransactionID
	serial   uint64
}

type usage struct {
	node device.NodeID
	id   device.TransactionID
	to   *Process
}

type lifeAt struct {
	node device.NodeID
	to   *Process
}

// newChurn creates the scenario of a seed, with drivers that use registers or queues in memory.
func newChurn(seed uint64, queues bool) (*churn, error) {
	rng := rand.New(rand.NewPCG(seed, 3))
	pick := func(n int) int { return rng.IntN(n) }
	cfg := Config{
		Seed: seed, Nodes: 2 + pick(2), Memory: int64(1 + pick(40_000)), SlowMemory: pick(3) * 30_000,
		TimeoutUS: uint32(500 + pick(3000)), GuardUS: uint32(500 + pick(5000)), Policy: fault.PIO, Outstanding: uint32(1 + pick(4)),
		Injection: link.Injection{
			LoseAck: pick(2) * pick(100_000), LoseNack: pick(2) * pick(100_000), LoseRAPF: pick(2) * pick(200_000),
			LoseData: pick(2) * pick(50_000), Delay: pick(3) * pick(200_000), DelayMax: int64(1 + pick(2_000_000)), Duplicate: pick(2) * pick(100_000),
		},
		IDs: []int{0, 1, 2, 4}[pick(4)], Interrupt: int64(pick(2) * pick(100_000)),
		Firmware: r5.Options{NoWholeBlocks: pick(4) > 0}, Stall: !queues && seed%6 == 2,
	}
	cfg.Hosts = seed%8 == 3
	if queues {
		cfg.front = queuesInMemory(0)
	}
	w, err := New(cfg)
	if err != nil {
		return nil, err
	}
	c := &churn{
		World: w, rng: rng, again: seed%2 == 1, lives: make([]int, len(w.nodes)), up: make([]int, len(w.nodes)),
		guests: map[guestAccess]device.PDID{},
		sends:  map[sending]*piece{}, firsts: map[sending]*piece{}, uses: map[usage]uint64{}, acked: map[lifeAt]int{},
	}
	w.observer = c
	if hasWindows(seed) {
		c.windowRng = rand.New(rand.NewPCG(seed, 4))
	}
	if seed%4 == 3 {
		c.linkRng = rand.New(rand.NewPCG(seed, 5))
		for range c.linkRng.IntN(8) {
			w.after(c.linkRng.Int64N(churnSteps*200_000), c.part)
		}
	}
	for i := range w.nodes {
		for k := range 2 {
			s := &seat{node: i, uid: 1000}
			if c.windowRng != nil && k == 1 {
				s.uid = 2000
			}
			c.seats = append(c.seats, s)
			w.after(rng.Int64N(2)*rng.Int64N(1e6), func() { c.sit(s) })
		}
	}
	return c, nil
}

func (c *churn) wrong(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w at %d ns: %s", errChurn, c.World.now, fmt.Sprintf(format, args...))
	}
}

func (c *churn) Failed() error { return c.err }

// sit puts the next process into a seat, later if there is no place yet.
func (c *churn) sit(s *seat) {
	if s.p != nil {
		return
	}
	n := c.World.nodes[s.node]
	p, err := (*Process)(nil), errChurn
	if c.up[s.node] == c.lives[s.node] {
		p, err = n.Attach(s.uid, churnBase, churnPages)
	}
	if err != nil {
		c.World.after(100_000, func() { c.sit(s) })
		return
	}
	for i := range p.pages {
		if i < churnFrom/device.PageSize || c.rng.IntN(3) > 0 {
			p.Set(i, present)
		}
	}
	*s = seat{node: s.node, uid: s.uid, p: p, tag: s.tag}
	if c.again {
		s.tag, s.reads = 0, rand.New(rand.NewPCG(c.World.cfg.Seed, uint64(slices.Index(c.seats, s))))
	}
	p.OnDone = func(ch int, done uint32, status uint8) {
		if s.p != p {
			return
		}
		m := s.chans[ch]
		if m == nil {
			c.wrong("node %d tells slot %d of the end of a transfer on channel %d, which its process has not begun", n.id, p.Domain.Slot, ch)
			return
		}
		s.chans[ch] = nil
		c.over(m, done, status)
	}
	p.OnMail = func(src mailbox.Source, words [device.PktzMaxWords]uint64) {
		a, err := mailbox.DecodeAnswer(words[0])
		if err != nil || src.PDID != 0 || a.Sequence == 0 {
			return
		}
		for _, m := range c.all {
			if m.read && m.dst == p && !m.ended && m.tag == uint16(a.Transaction) {
				c.over(m, device.DoneFailed, uint8(a.Sequence))
			}
		}
	}
}

// over processes the end of a transfer at its initiator.
func (c *churn) over(m *move, done uint32, status uint8) {
	m.ended, m.done, m.status = true, done, status
	if !m.read && m.from.p == m.src {
		m.from.place[m.place] = false
	}
	if done != device.DoneCompleted {
		if status == device.StatusLimit {
			c.wrong("transfer %d fails for its attempts, and no node is silent for so long", m.id)
		}
		return
	}
	c.Complete++
	if slices.Contains(m.got, false) {
		c.wrong("transfer %d is complete, and some of it was never written", m.id)
	}
	m.closed = true
}

// begin starts a transfer between two seats. It returns nil if that is not possible now.
func (c *churn) begin(at, other *seat, read bool) *move {
	if at.p == nil || other.p == nil || at == other {
		return nil
	}
	from, to := at, other
	if read {
		from, to = other, at
	}
	place := slices.Index(from.place[:], false)
	ch := slices.Index(at.chans[:], nil)
	if place < 0 || ch < 0 {
		return nil
	}
	m := &move{id: uint64(len(c.all) + 1), read: read, at: at, from: from, src: from.p, dst: to.p, place: place}
	rng := c.rng
	if read && c.again {
		rng = at.reads
	}
	size := []int{8, 2048, 4096, 16384, churnMost}[rng.IntN(5)]
	dst := churnFrom + []int{0, 0, 0, 4096, 16384 - 2048}[rng.IntN(5)]
	m.got = make([]bool, size/8)
	for i := range size / 8 {
		binary.LittleEndian.PutUint64(from.p.Data[place*churnMost+8*i:], m.id<<32|uint64(i))
	}
	m.desc = device.Descriptor{
		Src: churnBase + device.VA(place*churnMost), Dst: churnBase + device.VA(dst), Size: uint32(size),
		DstNode: device.NodeID(to.node), DstPDID: to.p.Domain.PDID, DstGeneration: to.p.Domain.Generation,
	}
	if read || rng.IntN(2) == 0 {
		m.desc.Notify = churnBase + churnFrom + 18*device.PageSize + device.VA(16*rng.IntN(8))
		m.desc.First, m.desc.Last = 0xf1<<56|m.id, 0x1a<<56|m.id
	}
	c.all = append(c.all, m)
	from.place[place] = true
	if !read {
		at.chans[ch] = m
		at.p.Write(ch, m.desc)
		return m
	}
	at.tag++
	m.tag = at.tag & (1<<14 - 1)
	if c.again {
		m.desc.First, m.desc.Last = 0xf2<<56|uint64(m.tag), ownRead<<56|uint64(m.tag)
	}
	c.ask(m, m.desc.Size, 0)
	return m
}

// ask requests a read until it ends; size 0 requests its end.
func (c *churn) ask(m *move, size uint32, tries int) {
	if m.ended || m.at.p != m.dst || tries > 40 {
		return
	}
	r := mailbox.ReadRequest{
		Tag: m.tag, Size: size, Src: m.desc.Src, Dst: m.desc.Dst, Notify: m.desc.Notify, First: m.desc.First, Last: m.desc.Last,
		Target: m.src.Domain.PDID, TargetGeneration: m.src.Domain.Generation,
	}
	words := r.Encode()
	m.dst.Send(tries%3, device.NodeID(m.from.node), device.MailboxRead, words[:]...)
	c.World.after(int64(3e6)<<min(tries, 6), func() { c.ask(m, size, tries+1) })
}

// transfer returns the transfer that a word names, and the word's place in it.
func (c *churn) transfer(v uint64) (*move, int) {
	id, i := v>>32, int(v&(1<<32-1))
	if id == 0 || id > uint64(len(c.all)) || i >= len(c.all[id-1].got) {
		return nil, 0
	}
	return c.all[id-1], i
}

// ownRead is the top byte of completion words of reads that are named by the number of the
// process's read; the next process uses the same numbers.
const ownRead = 0x2a

// named returns the transfer to which these completion words belong in a process.
func (c *churn) named(p *Process, words []byte) *move {
	v := word(words[8:])
	if v>>56 != ownRead {
		m, _ := c.transfer(v << 32)
		return m
	}
	for _, m := range c.all {
		if m.read && m.dst == p && m.desc.Last == v {
			return m
		}
	}
	return nil
}

// moves judges a write that a node begins.
func (c *churn) Moves(n *Node, p *Process, a *pldma.Access) {
	if p == nil || n.process[a.Slot] != p || c.seatOf(p) == nil {
		c.wrong("node %d writes to slot %d, which nobody has any more", n.id, a.Slot)
		return
	}
	if a.Ordered {
		m := c.named(p, a.Data)
		switch {
		case m == nil || word(a.Data) != m.desc.First || word(a.Data[8:]) != m.desc.Last:
			c.wrong("completion words %x of no transfer", a.Data)
		case m.dst != p || a.VA != m.desc.Notify:
			c.wrong("the words of transfer %d go to a process that it does not name", m.id)
		case slices.Contains(m.got, false):
			c.wrong("the words of transfer %d are written before all of it is", m.id)
		default:
			c.mayWrite(n, p, m, a)
		}
		return
	}
	if m, _ := c.transfer(word(a.Data)); m != nil {
		c.mayWrite(n, p, m, a)
	}
	for i := 0; i+8 <= len(a.Data); i += 8 {
		m, k := c.transfer(word(a.Data[i:]))
		switch {
		case m == nil:
			c.wrong("a word %#x of no transfer is written", word(a.Data[i:]))
		case m.dst != p:
			c.wrong("transfer %d is written to a process that it does not name", m.id)
		case a.VA+device.VA(i) != m.desc.Dst+device.VA(8*k):
			c.wrong("word %d of transfer %d is written to %v", k, m.id, a.VA+device.VA(i))
		case m.closed:
			c.wrong("transfer %d is written again after its end", m.id)
		}
	}
}

// landed judges the bytes that are now in memory.
func (c *churn) Landed(p *Process, a *pldma.Access) {
	c.inTime(p, a)
	if a.Ordered {
		if m := c.named(p, a.Data); m != nil && m.dst == p {
			m.closed = true
			if m.read && !m.ended {
				c.over(m, device.DoneCompleted, 0)
			}
			if m.read && m.from.p == m.src {
				m.from.place[m.place] = false
			}
		}
		return
	}
	var last *piece
	for i := 0; i+8 <= len(a.Data); i += 8 {
		m, k := c.transfer(word(a.Data[i:]))
		if m == nil || m.dst != p {
			return
		}
		m.got[k] = true
		if last == nil || last.move != m || 8*k < last.at || 8*k >= last.at+last.size {
			if last = c.pieceOf(m, 8*k); last != nil {
				c.inTurn(m, last, p)
			}
		}
	}
	c.Writes++
}

// inTurn judges a piece of a transfer that is now in memory: nothing newer was acknowledged
// before it.
func (c *churn) inTurn(m *move, last *piece, p *Process) {
	src := device.NodeID(m.from.node)
	if last.life < c.acked[lifeAt{src, p}] {
		c.wrong("transfer %d of a former life of node %d lands after a block of its new one was acknowledged", m.id, src)
	}
	if last.serial < c.uses[usage{src, last.id, p}] && last.life == c.lives[src] {
		c.wrong("transfer %d lands after a newer block of its id was acknowledged", m.id)
	}
}

func (c *churn) seatOf(p *Process) *seat {
	for _, s := range c.seats {
		if s.p == p {
			return s
		}
	}
	return nil
}

// pieceOf finds the newest sending of the block that contains a byte of a transfer.
func (*churn) pieceOf(m *move, at int) (found *piece) {
	for _, p := range m.sends {
		if at >= p.at && at < p.at+p.size && (found == nil || p.serial > found.serial) {
			found = p
		}
	}
	return found
}

// sent processes a frame that a node passes to its link.
func (c *churn) Sent(n *Node, f *wire.Frame) {
	switch {
	case f.Kind == wire.Data:
		c.block(n, f)
	case f.Kind == wire.Ack && f.MessageLen == 0 && f.Code == device.CodeAck:
		c.acknowledges(n, f)
	case f.Kind == wire.Ack && f.MessageLen == 0 && f.Code == device.CodeSlaveError:
		found := n.SOC.Count(device.FIFOOverflows) > 0
		for i := 0; !found; i++ {
			e, _, ok := n.SOC.PeekFault(false, i)
			if !ok {
				break
			}
			found = e.Source == f.DstNode && e.Transaction == f.ID && e.Sequence == f.Seq
		}
		if !found {
			c.wrong("node %d tells a fault of id %d, number %d, of node %d, and none is in its FIFO", n.id, f.ID, f.Seq, f.DstNode)
		}
	}
	if !c.late && c.rng.IntN(30) == 0 {
		c.Replayed++
		c.World.Again(f, c.rng.Int64N(20e6))
	}
}

// block records which block is sent under a number.
func (c *churn) block(n *Node, f *wire.Frame) {
	use := sending{n.id, f.Epoch, f.ID, f.First}
	p := c.firsts[use]
	if p == nil {
		m, k := c.transfer(word(f.Payload))
		if m == nil {
			c.wrong("node %d sends a word %#x of no transfer", n.id, word(f.Payload))
			return
		}
		if f.VA != m.desc.Dst+device.VA(8*k) || f.DstGeneration != m.desc.DstGeneration {
			return // a read that has ended is served again: its source belongs to another transfer
		}
		c.serial++
		p = &piece{move: m, at: 8 * k, size: len(f.Payload), life: c.lives[n.id], id: f.ID, serial: c.serial}
		c.firsts[use] = p
		c.mayRead(m)
		m.sends = append(m.sends, p)
	}
	c.sends[sending{n.id, f.Epoch, f.ID, f.Seq}] = p
}

// acknowledges judges an acknowledgement: the block must be in memory.
func (c *churn) acknowledges(n *Node, f *wire.Frame) {
	p := c.sends[sending{f.DstNode, f.Epoch, f.ID, f.Seq}]
	if p == nil || int(n.id) >= len(c.World.nodes) || c.seatOf(p.move.dst) == nil || p.move.dst.node != n {
		return // of a process that has ended, or only completion words
	}
	if slices.Contains(p.move.got[p.at/8:(p.at+p.size)/8], false) {
		c.wrong("a block of transfer %d is acknowledged and was never written", p.move.id)
	}
	u := usage{f.DstNode, f.ID, p.move.dst}
	c.uses[u] = max(c.uses[u], p.serial)
	l := lifeAt{f.DstNode, p.move.dst}
	c.acked[l] = max(c.acked[l], p.life)
}

// Run runs the scenario and returns the violated rule.
func (c *churn) Run() error {
	w := c.World
	for range churnSteps {
		if err := w.Settle(c.rng.Int64N(400_000)); err != nil {
			return err
		}
		c.disturb()
	}
	c.late = true
	if err := w.Settle(2e9); err != nil {
		return err
	}
	for _, s := range c.seats {
		if s.mute {
			c.mute(s, false)
		}
		for _, w := range slices.Clone(s.windows) {
			c.closeWindow(s, w)
		}
	}
	if err := w.Run(w.now+100e9, func() bool { return c.waiting() == nil }); err != nil {
		m := c.waiting()
		return fmt.Errorf("transfer %d from node %d to node %d (read %v), which has not ended: %w", m.id, m.from.node, m.desc.DstNode, m.read, err)
	}
	// All processes reach all others.
	for _, at := range c.seats {
		for _, other := range c.seats {
			if at == other {
				continue
			}
			if at.p == nil || other.p == nil {
				return fmt.Errorf("seed %d: %w: a seat of node %d or %d stays empty", w.cfg.Seed, errChurn, at.node, other.node)
			}
			if err := c.reach(at, other, c.rng.IntN(2) == 0); err != nil {
				return fmt.Errorf("seed %d: %w", w.cfg.Seed, err)
			}
		}
	}
	for _, n := range w.nodes {
		if err := n.SOC.Audit(); err != nil {
			return err
		}
	}
	return nil
}

// waiting returns a transfer whose process lives and has not seen an end, or nil.
func (c *churn) waiting() *move {
	for _, m := range c.all {
		if !m.ended && (m.at.p == m.src || m.at.p == m.dst) {
			return m
		}
	}
	return nil
}

// reach completes one transfer, and checks that a process without admission is refused.
func (c *churn) reach(at, other *seat, read bool) error {
	// Free the places of transfers whose end was never reported (reads of ended processes).
	at.place, other.place = [churnPlace]bool{}, [churnPlace]bool{}
	m := c.begin(at, other, read)
	if m == nil {
		return fmt.Errorf("%w: a process still has a transfer on each channel", errChurn)
	}
	// Wait for its end and for that of its frames: the next transfer has the same source.
	if err := c.World.Run(c.World.now+100e9, func() bool { return m.ended }); err != nil {
		return fmt.Errorf("transfer %d from node %d to node %d (read %v): %w", m.id, m.from.node, m.desc.DstNode, read, err)
	}
	want := uint8(0)
	if at.uid != other.uid {
		want = device.StatusDomain
	}
	if m.status != want {
		return fmt.Errorf("%w: transfer %d from node %d to node %d ends with status %d, want %d", errChurn, m.id, m.from.node, m.desc.DstNode, m.status, want)
	}
	return c.World.Settle(1e6)
}
