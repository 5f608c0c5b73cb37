package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
)

// fabric is a scenario of the whole firmware, derived from a seed: processes on a few nodes,
// writes and reads between them, and all possible failures.
type fabric struct {
	Seed  uint64
	World *World
	// Bound is when the last transfer must have ended, ns, computed from the scenario.
	Bound int64

	watch *watch
	procs []*party
	jobs  []*job
}

// party is a process of a scenario, with the state that a real one's library has.
type party struct {
	*Process
	node    device.NodeID
	foreign bool // admits no other process
	sources int  // bytes of memory that are sources, from 0 on
	channel int  // write channels in use
	tags    int  // read tags in use
	jobs    []*job
	before  []byte // memory that no transfer may change; the rest is blanked
}

// job is one transfer and its result.
type job struct {
	read     bool
	from, to *party // source and destination
	src, dst int    // offsets in their memory
	size     int
	words    int // offset of the completion words in to's memory; -1: none
	desc     device.Descriptor
	tag      uint16
	tries    int
	plan     int // number of the latest plan to ask again
	want     []byte
	// A page of the source, or of the destination and its words, can never be paged in.
	badSource, badTarget bool

	run     *service // its run, as observed by the watch
	foreign bool     // the other end does not admit it
	ended   bool
	endedAt int64 // ns
	done    uint32
	status  uint8
	own     []byte
	wrong   string
}

// Kinds of scenario: one in so many seeds has the kind.
const (
	crossEvery = 47  // all read channels busy in both directions at once
	slowEvery  = 31  // memory slower than the time-out
	largeEvery = 239 // a transfer of up to 8 MiB
	fabricBase = device.VA(0x7f00_0000_0000)
	maxStart   = 30_000
)

// newFabric creates the scenario of a seed, with drivers that use registers or queues in
// memory.
func newFabric(seed uint64, queues bool) (*fabric, error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	pick := func(n int) int { return rng.IntN(n) }
	cross, large, slow := seed%crossEvery == 7, seed%largeEvery == 11, seed%slowEvery == 5
	nodes := []int{2, 2, 2, 3, 3, 4, 5, 8}[pick(8)]
	if cross {
		nodes = 2 + min(pick(3), 1)
	}
	cfg := Config{
		Seed: seed, Nodes: nodes, NoTXFIFO: pick(4) == 0, Memory: int64(pick(3000) * []int{1, 1, 1, 20}[pick(4)]), SlowMemory: pick(3) * 2000,
		TimeoutUS: uint32(500 + pick(20000)), GuardUS: uint32(2000 + pick(50000)),
		Policy:      []fault.Policy{fault.PIO, fault.PI4, fault.PIA, fault.Adaptive}[pick(4)],
		Outstanding: uint32(1 + pick(8)),
		Injection: link.Injection{
			LoseAck: pick(3) * pick(120_000), LoseNack: pick(3) * pick(120_000), LoseRAPF: pick(3) * pick(120_000),
			LoseRead: pick(3) * pick(150_000), LoseAnswer: pick(3) * pick(150_000),
			LoseData: pick(2) * pick(50_000), Duplicate: pick(2) * pick(100_000), Delay: pick(2) * pick(200_000), DelayMax: int64(1 + pick(50_000_000)),
			Tear: pick(2) * pick(50_000), Corrupt: pick(2) * pick(50_000),
			Routes: 1 + pick(4), RouteDelay: int64(pick(2) * pick(20_000)),
		},
		// Small numbers of everything, so that all of it is reused and exhausted.
		IDs: []int{0, 0, 2, 3, 5, 16}[pick(6)], FIFO: []int{0, 0, 2, 8}[pick(4)], Contexts: []int{0, 0, 1, 3, 8}[pick(5)],
		Interrupt: int64(pick(2) * pick(400_000)),
		Firmware: r5.Options{
			NoFastPath: pick(4) == 0, NoBypass: pick(4) == 0, NoTickets: pick(4) == 0,
			NoCounters: pick(16) == 0, NoRetransmissionBit: pick(4) == 0, NoWholeBlocks: pick(3) == 0,
		},
	}
	if slow {
		// Memory that is sometimes slower than the time-out: a block is still being read when
		// it must be retransmitted.
		cfg.NoTXFIFO, cfg.TimeoutUS = false, uint32(500+pick(1500))
		cfg.Memory, cfg.SlowMemory = int64(20_000+pick(100_000)), 100_000
	}
	if cfg.NoTXFIFO {
		// A source that cannot be paged in is retried for 100 s.
		cfg.TimeoutUS += 20000
	}
	cfg.Stall, cfg.Hosts = !queues && seed%6 == 2, seed%5 == 3
	if queues {
		broken := 0
		if seed%4 == 1 {
			broken = 10_000
		}
		cfg.front = queuesInMemory(broken)
	}
	w, err := New(cfg)
	if err != nil {
		return nil, err
	}
	f := &fabric{Seed: seed, World: w}
	count := 1 + pick(6)
	if cross {
		count = nodes * (32 + pick(12))
		if nodes > 2 {
			count *= 2 // exceeds the channels and places of a target
		}
	}
	if err := f.plan(rng, count, cross, large); err != nil {
		return nil, err
	}
	f.hurt(rng)
	f.bound()
	f.watch = newWatch(f)
	w.observer = f.watch
	return f, nil
}

// plan creates the processes and the transfers between them.
func (f *fabric) plan(rng *rand.Rand, count int, cross, large bool) error {
	pick := func(n int) int { return rng.IntN(n) }
	nodes := len(f.World.nodes)
	each := 1
	if !cross && nodes < 4 && pick(3) == 0 {
		each = 2
	}
	const sources = 48 << 10
	need := make([]int, nodes*each)
	for i := range nodes * each {
		f.procs = append(f.procs, &party{node: device.NodeID(i % nodes), foreign: !cross && i > 1 && pick(8) == 0, sources: sources})
		need[i] = f.procs[i].sources + pick(3*device.PageSize)
	}
	takes := len(f.procs)
	if !cross && pick(3) == 0 {
		// A process without transfers that forges messages.
		f.procs = append(f.procs, &party{node: device.NodeID(pick(nodes)), foreign: true, sources: 8})
		need = append(need, 0)
	}
	for i := range count {
		size := []int{1 + pick(64), 1 + pick(3*device.PageSize), 1 + pick(device.BlockSize*2), 1 + pick(sources)}[pick(4)]
		if cross {
			size = 1 + pick(2000)
			if pick(8) == 0 {
				size = device.BlockSize + 1 + pick(sources-device.BlockSize)
			}
		}
		from, to := pick(takes), pick(takes)
		if cross {
			from = i % nodes
			to = (from + 1 + pick(nodes-1)) % nodes
		} else if from == to {
			to = (to + 1) % takes
		}
		j := &job{read: cross || pick(2) == 0, from: f.procs[from], to: f.procs[to], size: size, words: -1, dst: need[to]}
		if large && i == 0 {
			j.size = 1 + pick(8<<20)
			f.procs[from].sources = max(f.procs[from].sources, j.size)
			need[from] += f.procs[from].sources // sources come first
		}
		need[to] += j.size
		if j.read || pick(3) > 0 {
			j.words = (need[to] + 31) &^ 15
			need[to] = j.words + 16
		}
		need[to] += pick(2 * device.PageSize)
		f.jobs = append(f.jobs, j)
	}
	for i, p := range f.procs {
		uid := uint32(1000)
		if p.foreign {
			uid = 2000 + uint32(i)
		}
		pages := need[i]/device.PageSize + 2
		var err error
		if p.Process, err = f.World.Node(int(p.node)).Attach(uid, fabricBase+device.VA(i)<<36, pages); err != nil {
			return err
		}
		f.init(p, rng, pick(101))
	}
	for i, j := range f.jobs {
		f.describe(j, i, rng)
	}
	return nil
}

// init sets the content of a process's memory and the states of its pages.
func (f *fabric) init(p *party, rng *rand.Rand, absentOf int) {
	for i := 0; i+8 <= p.sources && i+8 <= len(p.Data); i += 8 {
		binary.LittleEndian.PutUint64(p.Data[i:], rng.Uint64())
	}
	for i := range p.pages {
		if rng.IntN(100) >= absentOf {
			p.Set(i, present)
		} else {
			p.Set(i, absent)
		}
	}
	p.OnDone = func(ch int, done uint32, status uint8) {
		for _, j := range p.jobs {
			if !j.read && j.from == p && int(j.tag) == ch {
				j.end(done, status)
			}
		}
	}
	p.OnWords = func() {
		for _, j := range p.jobs {
			if j.to != p || j.words < 0 || word(p.Data[j.words+8:]) != j.desc.Last {
				continue
			}
			if word(p.Data[j.words:]) != j.desc.First {
				j.wrong = "the last word is there and the first is not"
			}
			j.reuse()
			if j.read && !j.ended {
				j.end(device.DoneCompleted, 0)
			}
		}
	}
	p.OnMail = func(src mailbox.Source, words [device.PktzMaxWords]uint64) {
		a, err := mailbox.DecodeAnswer(words[0])
		if err != nil || src.PDID != 0 {
			return
		}
		for _, j := range p.jobs {
			if j.read && j.to == p && !j.ended && j.tag == uint16(a.Transaction) {
				if a.Sequence == 0 { // refused: request it again
					f.watch.met.readsRefused++
					j.askAfter(1e6)
				} else {
					j.end(device.DoneFailed, uint8(a.Sequence))
				}
			}
		}
	}
}

func (p *party) node0() *Node { return p.Process.node }

func (f *fabric) describe(j *job, i int, rng *rand.Rand) {
	j.src = rng.IntN(j.from.sources - min(j.size, j.from.sources-1))
	if j.src+j.size > j.from.sources {
		j.src = 0
	}
	j.desc = device.Descriptor{
		Src: j.from.Base + device.VA(j.src), Dst: j.to.Base + device.VA(j.dst), Size: uint32(j.size),
		First: 0xf125_0000 + uint64(i), Last: 0x1a57_0000 + uint64(i), Urgent: rng.IntN(8) == 0,
		DstNode: j.to.node, DstPDID: j.to.Domain.PDID, DstGeneration: j.to.Domain.Generation,
	}
	if j.words >= 0 {
		j.desc.Notify = j.to.Base + device.VA(j.words)
	}
	initiator, other := j.from, j.to
	if j.read {
		initiator, other = j.to, j.from
	}
	j.foreign = other.foreign || initiator.foreign
	if j.read {
		j.tag = uint16(initiator.tags)
		initiator.tags++
	} else {
		j.tag = uint16(initiator.channel)
		initiator.channel++
	}
	initiator.jobs = append(initiator.jobs, j)
	if j.to != initiator {
		j.to.jobs = append(j.to.jobs, j)
	}
	j.want = bytes.Clone(j.from.Data[j.src : j.src+j.size])
}

// hurt permanently removes pages of some transfers, and determines which transfers cannot
// succeed.
func (f *fabric) hurt(rng *rand.Rand) {
	for i, j := range f.jobs {
		if rng.IntN(14) == 0 {
			j.to.pages[(j.dst+rng.IntN(j.size))/device.PageSize] = []pageState{unmapped, readOnly}[rng.IntN(2)]
		}
		// Without a TXFIFO each of these takes 100 s, and many take it one after the other: a
		// few are enough.
		if rng.IntN(24) == 0 && (!f.World.cfg.NoTXFIFO || i < 12) {
			j.from.pages[(j.src+rng.IntN(j.size))/device.PageSize] = unmapped
		}
	}
	dead := func(p *party, from, n int, write bool) bool {
		for i := from / device.PageSize; i <= (from+n-1)/device.PageSize; i++ {
			if st := p.pages[i]; st == unmapped || st == readOnly && write {
				return true
			}
		}
		return false
	}
	for _, j := range f.jobs {
		j.badSource = dead(j.from, j.src, j.size, false)
		j.badTarget = dead(j.to, j.dst, j.size, true) || j.words >= 0 && dead(j.to, j.words, 16, true)
		// An absent page reads as zero, whatever the process had written there.
		j.want = bytes.Clone(j.from.Data[j.src : j.src+j.size])
	}
	for _, p := range f.procs {
		p.before = p.outside()
	}
}

// outside returns a process's memory with all ranges that transfers may write blanked.
func (p *party) outside() []byte {
	b := bytes.Clone(p.Data)
	for _, j := range p.jobs {
		if j.to == p {
			clear(b[j.dst : j.dst+j.size])
			if j.words >= 0 {
				clear(b[j.words : j.words+16])
			}
		}
	}
	return b
}

// bound computes when all transfers must have ended. It assumes that blocks are sent one after
// the other, each as often as its frames are lost, and that one block has the bad luck of one
// in 1e9.
func (f *fabric) bound() {
	c := &f.World.cfg
	in := &c.Injection
	ms := func(us uint32) int64 { return int64(us) * 1000 }
	// chance returns the probability that one of these happens to a frame.
	chance := func(perMillion ...int) float64 {
		fine := 1.0
		for _, p := range perMillion {
			fine *= 1 - float64(p)/1e6
		}
		return 1 - fine
	}
	// worst returns how often in a row an event of that probability happens at worst.
	worst := func(p float64) int { return 1 + int(math.Log(1e-9)/math.Log(max(p, 1e-9))) }

	// A failed round of a block costs a time-out; a delayed frame may count as lost.
	lost := chance(in.LoseData, in.Tear, in.Corrupt, in.LoseAck, in.LoseNack, in.Delay, in.Delay)
	access := 100*c.Memory + c.Interrupt + int64(in.Routes)*in.RouteDelay + 50_000
	round := ms(c.TimeoutUS) + 4*access
	if c.Hosts {
		round += 500e6 // time-outs to other hosts
	}
	// A fault whose report is lost costs a guard time-out, which doubles. A small FIFO may also
	// lose the entry.
	unsaid := chance(in.LoseRAPF, in.Delay)
	if c.FIFO > 0 {
		unsaid = max(unsaid, 0.5)
	}
	tail := 2 * int64(worst(lost)) * round // the first frame of each link learns the link's number
	for k := range worst(unsaid) {
		tail += ms(c.GuardUS) << min(k, 4)
	}
	if c.Contexts > 0 || len(f.jobs) > 32 {
		round += 64e6 // the longest back-off of a refused block
	}
	blocks, grace, asks := int64(0), int64(0), int64(0)
	for _, j := range f.jobs {
		blocks += int64(j.blocks()) + 1
		if j.badSource && c.NoTXFIFO {
			// A source fault is retried for 100 s, and then 64 times more.
			grace += 100e9 + 66*round
		}
		if j.read {
			// A lost request or answer is requested again.
			asks = 0
			for k := range worst(chance(in.LoseRead, in.LoseAnswer, in.Delay, in.Delay)) {
				asks += askAgain(k)
			}
		}
	}
	f.Bound = maxStart + grace + int64(float64(blocks)*float64(round+ms(c.GuardUS))/(1-lost)) + tail + asks + 2*in.DelayMax
}

// askAgain returns how long the library waits for an answer to a read after tries earlier
// requests, ns.
func askAgain(tries int) int64 { return min(int64(20e6)<<min(tries+1, 6), 1e9) }

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// ask sends a read's request like the library: repeatedly, until there is an answer or the
// words are written.
func (j *job) ask() {
	if j.ended {
		return
	}
	p := j.to
	m := mailbox.ReadRequest{
		PDID: p.Domain.PDID, Tag: j.tag, Size: j.desc.Size, Src: j.desc.Src, Dst: j.desc.Dst,
		Notify: j.desc.Notify, First: j.desc.First, Last: j.desc.Last, Target: j.from.Domain.PDID,
		TargetGeneration: j.from.Domain.Generation,
	}
	words := m.Encode()
	p.Send(j.tries%3, j.from.node, device.MailboxRead, words[:]...)
	j.askAfter(askAgain(j.tries))
	j.tries++
}

// announce rings for a channel like the library: by the doorbell word and by the packetizer.
func (p *party) announce(ch int, d device.Descriptor) {
	p.Write(ch, d)
	p.Send(0, p.node, device.MailboxRequest, mailbox.Doorbell{
		PDID: p.Domain.PDID, Channel: uint16(p.Domain.Slot*device.ChannelsPerSlot + ch),
	}.Encode())
}

// forge makes processes without transfers request ends and repetitions of others' blocks.
func (f *fabric) forge() {
	w := f.World
	for _, p := range f.procs {
		if !p.foreign || len(p.jobs) > 0 {
			continue
		}
		for range 60 {
			dst := device.NodeID(w.rng.IntN(len(w.nodes)))
			m := mailbox.RAPF{
				PDID: p.Domain.PDID, Claimed: p.Domain.PDID, Transaction: device.TransactionID(w.rng.IntN(6)),
				Sequence: device.Sequence(1 + w.rng.IntN(40)), Fail: w.rng.IntN(2) == 0,
			}
			w.after(w.rng.Int64N(3e6), func() { p.Send(2, dst, device.MailboxRequest, m.Encode()) })
		}
	}
}

// askAfter sends the request again after d ns and cancels earlier plans.
func (j *job) askAfter(d int64) {
	j.plan++
	plan := j.plan
	j.to.node0().world.after(d, func() {
		if plan == j.plan {
			j.ask()
		}
	})
}

func (j *job) end(done uint32, status uint8) {
	if j.ended {
		j.wrong = "ended twice"
		return
	}
	j.ended, j.done, j.status, j.endedAt = true, done, status, j.to.node0().world.now
	if done == device.DoneCompleted {
		j.reuse()
	}
}

// reuse does what an application does at once on completion: it checks the bytes and overwrites
// them. The new bytes must be intact at the end.
func (j *job) reuse() {
	if j.own != nil {
		return
	}
	buf := j.to.Data[j.dst : j.dst+j.size]
	if !bytes.Equal(buf, j.want) {
		j.wrong = "other bytes than the source's at completion"
	}
	j.to.Touch(j.dst, j.dst+j.size)
	for i := range buf {
		buf[i] ^= 0x5a
	}
	j.own = bytes.Clone(buf)
}

// Run runs the scenario and returns the violated rule.
func (f *fabric) Run() error {
	for _, j := range f.jobs {
		f.World.after(f.World.rng.Int64N(maxStart), func() {
			if j.read {
				j.ask()
			} else {
				j.from.announce(int(j.tag), j.desc)
			}
		})
	}
	f.forge()
	left := func() bool {
		for _, j := range f.jobs {
			if !j.ended {
				return false
			}
		}
		return true
	}
	if err := f.World.Run(f.Bound, left); err != nil {
		return err
	}
	// Frames still in flight must not change anything.
	if err := f.World.Settle(10e9); err != nil {
		return err
	}
	for i, j := range f.jobs {
		if err := j.check(); err != nil {
			kind := "write"
			if j.read {
				kind = "read"
			}
			return fmt.Errorf("transfer %d, a %s of %d bytes: %w", i, kind, j.size, err)
		}
	}
	for i, p := range f.procs {
		if !bytes.Equal(p.outside(), p.before) {
			return fmt.Errorf("process %d: memory outside the destination ranges has changed", i)
		}
	}
	for _, n := range f.World.nodes {
		if err := n.SOC.Audit(); err != nil {
			return err
		}
	}
	return nil
}

// check reports an error unless a transfer ended correctly.
func (j *job) check() error {
	switch {
	case j.wrong != "":
		return errors.New(j.wrong)
	case j.done == device.DoneCompleted && (j.badSource || j.badTarget):
		return errors.New("complete, although a page of it cannot be brought in")
	case j.done == device.DoneCompleted && j.foreign:
		return errors.New("complete, although the other end does not admit it")
	case j.done == device.DoneCompleted && j.own == nil:
		return errors.New("complete, but the target saw nothing")
	case j.done != device.DoneCompleted && j.done != device.DoneFailed:
		return fmt.Errorf("done is %d", j.done)
	case j.done == device.DoneFailed && !j.cause():
		return fmt.Errorf("failed with status %d, which has no cause", j.status)
	}
	if j.own != nil && !bytes.Equal(j.to.Data[j.dst:j.dst+j.size], j.own) {
		return errors.New("the target's own bytes were overwritten after completion")
	}
	return nil
}

// cause reports whether this transfer may have failed with its status. Losses of links are
// never a cause: none is so bad that 64 attempts in a row fail, and a block refused for lack of
// a context gets one in the end.
func (j *job) cause() bool {
	switch j.status {
	case device.StatusDomain:
		return j.foreign
	case device.StatusDecode:
		// Reported by a driver, which needs the FIFO entry of the fault.
		return j.badTarget || j.badSource && !j.to.node0().world.cfg.NoTXFIFO
	case device.StatusSlaveError:
		// Without a TXFIFO nothing reports that the source cannot be paged in.
		return j.badSource && j.to.node0().world.cfg.NoTXFIFO
	}
	return false
}
