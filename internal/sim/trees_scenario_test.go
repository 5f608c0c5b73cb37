package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/gsas"
	"github.com/exanet/pfd/soc/link"
)

// Trees of threads over links that lose, double and delay messages. Each node has threads, and pages
// that belong to trees; pages are taken away and given to other trees, are absent, or cannot be brought
// in; threads end, and others take their interfaces. The rig checks each access of a unit:
//
//   - an operation that changes words is performed at most once, and exactly once if its thread was
//     told that it is done, with the values that it then had; never if its thread was told otherwise;
//   - it is of the thread that asked, on a page of the thread's tree, which was not given up;
//   - a channel has one operation in flight.
type trees struct {
	seed    uint64
	world   *World
	rng     *rand.Rand
	nodes   []*treeNode
	threads []*simThread
	jobs    map[uint64]*treeJob // by their ID
	last    uint64              // ID of a job
	left    int                 // jobs to be started
	err     error
	met     treesMet
}

// treesMet counts the events of scenarios.
type treesMet struct {
	Done, Refused, Repeated, Stale, Moved, Wanted, Ended, Waits int
}

// treeNode is a node's memory and pages.
type treeNode struct {
	*Node
	words  map[uint64]*[atomics.MaxValues]uint64 // by GSAS_BACK / 32
	pages  [treePages]treePage
	flying map[uint32]uint64 // by thread and channel: ID of the access
}

const (
	treePages  = 6
	wordsUsed  = 4 // places of 32 bytes of each page
	threadsMax = 3 // on each node
	askEvery   = int64(20e6)
	askFor     = int64(900e6)
)

// treePage is a page of a node's partition.
type treePage struct {
	owner   uint32 // tree, 0 none
	grant   bool   // the first tree may read it
	former  uint32 // the tree that it was taken from, until it is no longer busy
	present bool
	back    uint64
	moved   int64 // when its owner changed last
}

// simThread is a thread.
type simThread struct {
	node       *treeNode
	iface      int
	slot       int
	pdid       device.PDID
	generation device.Generation
	protection uint32
	numbers    [device.PktzChannels][4]uint16 // by node
	current    [device.PktzChannels]*treeJob
	life       int
}

// treeJob is an operation of a thread.
type treeJob struct {
	id        uint64 // among the arguments of operations that change words
	thread    *simThread
	life      int
	channel   int
	to        device.NodeID
	number    uint16
	req       atomics.Request
	began     int64
	waited    int64 // when the first answer said that it waits
	performed int
	values    []uint64
	over      bool
}

func newTrees(seed uint64) (*trees, error) {
	rng := rand.New(rand.NewPCG(seed, 0x6761))
	pick := func(n int) int { return rng.IntN(n) }
	cfg := Config{
		Seed: seed, Nodes: 2 + pick(3), Memory: int64(pick(2) * pick(100_000)), SlowMemory: pick(2) * 20_000,
		Injection: link.Injection{
			LoseRead: pick(2) * pick(300_000), LoseAnswer: pick(2) * pick(300_000), Duplicate: pick(2) * pick(300_000),
			Delay: pick(3) * pick(300_000), DelayMax: int64(1 + pick(30_000_000)),
		},
	}
	w, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s := &trees{seed: seed, world: w, rng: rng, jobs: map[uint64]*treeJob{}, left: 50 + pick(100)}
	for i := range cfg.Nodes {
		n := &treeNode{Node: w.Node(i), words: map[uint64]*[atomics.MaxValues]uint64{}, flying: map[uint32]uint64{}}
		n.Operate = func(a *gsas.Access) (atomics.Status, []uint64) { return s.operate(n, a) }
		n.OnThread = func(iface int) { s.mail(n, iface) }
		s.nodes = append(s.nodes, n)
		p, err := n.AttachEmpty(1000, 0x10000, 1)
		if err != nil {
			return nil, err
		}
		s.set(n, device.PLGSASGrant, device.GSASGrant{Number: 1, Protection: treeOf(0), Read: true, Valid: true}.Encode())
		if err := n.Window(device.PL).Write32(device.PLGSASCtrl, device.GSASEnable); err != nil {
			return nil, err
		}
		for page := range n.pages {
			s.enter(n, page, treeOf(pick(3)), pick(3) > 0)
		}
		for k := range 1 + pick(threadsMax) {
			t := &simThread{node: n, iface: device.MailboxThread + k, slot: p.Domain.Slot, pdid: p.Domain.PDID, generation: p.Domain.Generation}
			s.threads = append(s.threads, t)
			s.begin(t)
		}
	}
	for _, t := range s.threads {
		for ch := range 1 + pick(device.PktzChannels) {
			w.After(int64(pick(1000)), func() { s.next(t, t.life, ch) })
		}
	}
	w.After(int64(pick(1_000_000)), s.churn)
	for _, n := range s.nodes {
		s.drive(n)
	}
	return s, nil
}

// treeOf returns the protection ID of one of three trees.
func treeOf(i int) uint32 { return uint32(atomics.ThreadOf(0, device.MailboxThread+i)) }

func (s *trees) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("seed %d at %d ns: "+format, append([]any{s.seed, s.world.now}, args...)...)
	}
}

func (s *trees) set(n *treeNode, at uint32, v uint64) {
	if err := n.Window(device.PL).Write64(at, v); err != nil {
		s.fail("%v", err)
	}
}

// enter makes a page a tree's, or nobody's.
func (s *trees) enter(n *treeNode, page int, owner uint32, present bool) {
	p := &n.pages[page]
	if p.owner != owner {
		p.moved = s.world.now
	}
	p.owner, p.present, p.grant = owner, present, owner != 0 && s.rng.IntN(3) == 0
	if owner != 0 {
		p.back = uint64(s.rng.IntN(1000)*treePages+page) << device.PageShift
	}
	e := device.GSASEntry{Protection: owner, Present: present, Valid: owner != 0}
	if p.grant {
		e.Grant = 1
	}
	s.set(n, device.PLGSASPage, device.GSASRun(uint64(page), 1))
	s.set(n, device.PLGSASBack, p.back)
	s.set(n, device.PLGSASEntry, e.Encode())
}

// begin sets the registers of a thread.
func (s *trees) begin(t *simThread) {
	t.life++
	t.current = [device.PktzChannels]*treeJob{}
	t.protection = treeOf(s.rng.IntN(3))
	i := uint32(t.iface)
	s.set(t.node, device.PLPktzProt+8*i, device.PktzProt(t.protection, t.slot))
	s.set(t.node, device.PLMboxCfg+8*i, device.ThreadMboxCfg(t.pdid, t.protection))
	s.set(t.node, device.PLPktzCfg+8*i, packetizer.Config{PDID: t.pdid, Node: t.node.id, Interface: uint8(t.iface), GSAS: true, Enable: true}.Encode())
}

// next starts the next operation of a thread's channel.
func (s *trees) next(t *simThread, life, ch int) {
	if s.left <= 0 || life != t.life {
		return
	}
	s.left--
	s.last++
	j := &treeJob{id: s.last<<8 | 1, thread: t, life: t.life, channel: ch, to: device.NodeID(s.rng.IntN(len(s.nodes))), began: s.world.now}
	ops := []atomics.Op{
		atomics.Read64, atomics.Read128, atomics.Read256, atomics.Write64, atomics.Write128, atomics.Write256, atomics.FetchAdd, atomics.Swap,
		atomics.CAS, atomics.FetchXor, atomics.CAS128, atomics.CWrite256,
	}
	op := ops[s.rng.IntN(len(ops))]
	page := s.rng.IntN(treePages + 1)
	for range 2 { // mostly of the own tree
		if page == treePages || s.nodes[j.to].pages[page].owner != t.protection {
			page = s.rng.IntN(treePages + 1)
		}
	}
	offset := uint64(page)<<device.PageShift | uint64(s.rng.IntN(wordsUsed)*32)
	if s.rng.IntN(20) == 0 {
		offset += 4
	}
	j.req = atomics.Request{Op: op, Address: atomics.At(j.to, offset)}
	for i := range op.Args() {
		j.req.Args[i] = j.id
	}
	switch op { // so that comparisons succeed at first
	case atomics.CAS, atomics.CWrite256:
		j.req.Args[0] = 0
	case atomics.CAS128:
		j.req.Args[0], j.req.Args[1] = 0, 0
	}
	t.numbers[ch][j.to]++
	j.number = t.numbers[ch][j.to]
	s.jobs[j.id] = j
	t.current[ch] = j
	s.ask(j)
}

// ask sends the request, and again until there is an answer.
func (s *trees) ask(j *treeJob) {
	t := j.thread
	if j.over || j.life != t.life {
		return
	}
	if s.world.now-j.began > askFor {
		if j.waited != 0 && s.world.now-j.waited > askFor/2 {
			s.fail("%v, number %d, waits for ever", j.req.Op, j.number)
		}
		s.end(j)
		return
	}
	ev := soc.Event{
		Kind: soc.MessageSent, Interface: t.iface, Channel: j.channel, Number: j.number,
		Destination: packetizer.Destination(j.to, device.MailboxGSAS, 0),
	}
	ev.N = j.req.Encode(ev.Words[:])
	ev.Words[0] |= s.rng.Uint64() & atomics.WiredBits // the sender's claims
	t.node.Event(&ev)
	s.world.After(askEvery, func() { s.ask(j) })
}

func (s *trees) end(j *treeJob) {
	j.over = true
	t, life := j.thread, j.life
	s.world.After(int64(s.rng.IntN(20_000)), func() { s.next(t, life, j.channel) })
}

// operate is an access of a node's unit to its memory.
func (s *trees) operate(n *treeNode, a *gsas.Access) (atomics.Status, []uint64) {
	i := slices.IndexFunc(s.threads, func(t *simThread) bool { return t.node.id == a.Thread.Node() && t.iface == a.Thread.Interface() })
	if i < 0 {
		s.fail("an operation of thread %x, which is none", a.Thread)
		return atomics.NoMemory, nil
	}
	node, ok := a.Address.Node()
	page := a.Address.Page()
	if !ok || node != n.id || page >= treePages || a.Address.Offset()%uint64(a.Op.Bytes()) != 0 {
		s.fail("%v at %v", a.Op, a.Address)
		return atomics.NoMemory, nil
	}
	p := &n.pages[page]
	owner := p.owner
	if p.former != 0 {
		owner = p.former
	}
	switch {
	case uint32(a.Tree) != owner || a.Back != p.back+a.Address.Offset()%device.PageSize:
		s.fail("%v of page %d as one of tree %x at 0x%x, it is tree %x's at 0x%x", a.Op, page, a.Tree, a.Back, owner, p.back)
	case a.Protection != a.Tree && (a.Protection != atomics.Protection(treeOf(0)) || a.Op.Writes()):
		s.fail("%v of tree %x on a page of tree %x", a.Op, a.Protection, a.Tree)
	}
	if s.rng.IntN(40) == 0 {
		return atomics.NoMemory, nil
	}
	line := a.Back / 32
	m := n.words[line]
	if m == nil {
		m = new([atomics.MaxValues]uint64)
		n.words[line] = m
	}
	shift := a.Back % 32 / 8
	var words [atomics.MaxValues]uint64
	copy(words[:], m[shift:])
	got := a.Op.Apply(&words, &a.Args)
	copy(m[shift:], words[:a.Op.Bytes()/8])
	values := append([]uint64(nil), got[:a.Op.Values()]...)
	if !a.Op.Writes() {
		if j := s.threads[i].current[a.Tag.Channel()]; j != nil && j.req.Op == a.Op && j.req.Address == a.Address && atomics.TagOf(j.channel, j.number) == a.Tag {
			j.performed, j.values = 1, values
		}
		return atomics.OK, values
	}
	j := s.jobs[a.Args[a.Op.Args()-1]]
	if j == nil || j.req.Op != a.Op || j.req.Address != a.Address || atomics.ThreadOf(j.thread.node.id, j.thread.iface) != a.Thread || atomics.TagOf(j.channel, j.number) != a.Tag {
		s.fail("nobody has asked for %+v", a.Request)
		return atomics.OK, values
	}
	if j.performed++; j.performed > 1 {
		s.fail("%v of thread %x, number %d of channel %d, is performed twice", a.Op, a.Thread, j.number, j.channel)
	}
	j.values = values
	return atomics.OK, values
}

// mail handles the messages to the thread of an interface.
func (s *trees) mail(n *treeNode, iface int) {
	i := slices.IndexFunc(s.threads, func(t *simThread) bool { return t.node == n && t.iface == iface })
	t := s.threads[i]
	for {
		source, words, ok := n.SOC.TakeMail(iface)
		if !ok {
			return
		}
		a, err := atomics.DecodeAnswer(words[:source.Words])
		if err != nil || source.PDID != 0 || uint32(a.Protection) != t.protection {
			s.fail("thread %d of node %d, of tree %x, gets %x from %+v", iface, n.id, t.protection, words[:source.Words], source)
			return
		}
		j := t.current[a.Tag.Channel()]
		if j == nil || j.over || a.Number != j.number || source.Node != j.to {
			continue // of an earlier one, or doubled
		}
		if a.Status == atomics.Waiting {
			if j.waited == 0 {
				j.waited = s.world.now
			}
			continue
		}
		if j.waited != 0 {
			s.met.Waits++
		}
		s.answered(j, &a)
		s.end(j)
	}
}

// answered checks a final answer.
func (s *trees) answered(j *treeJob, a *atomics.Answer) {
	if a.Status == atomics.OK {
		s.met.Done++
		if j.performed != 1 || !slices.Equal(j.values, a.Values[:a.N]) {
			s.fail("%v, number %d, is told as done with %d: it was performed %d times, with %d", j.req.Op, j.number, a.Values[:a.N], j.performed, j.values)
		}
		return
	}
	s.met.Refused++
	if j.performed != 0 && j.req.Op.Writes() {
		s.fail("%v, number %d, is told as %v and was performed", j.req.Op, j.number, a.Status)
	}
	page := j.req.Address.Page()
	if page >= treePages || j.req.Address.Offset()%uint64(j.req.Op.Bytes()) != 0 {
		if a.Status != atomics.BadAddress && a.Status != atomics.Busy {
			s.fail("%v at %v: %v", j.req.Op, j.req.Address, a.Status)
		}
		return
	}
	p := &s.nodes[j.to].pages[page]
	if p.moved < j.began && p.owner != 0 && (a.Status == atomics.BadAddress || (a.Status == atomics.Denied) == (p.owner == j.thread.protection)) && a.Status != atomics.NoMemory && a.Status != atomics.Busy {
		s.fail("%v on a page of tree %x by one of tree %x: %v", j.req.Op, p.owner, j.thread.protection, a.Status)
	}
}

// churn changes pages and threads now and then.
func (s *trees) churn() {
	if s.left <= 0 {
		return
	}
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	page := s.rng.IntN(treePages)
	p := &n.pages[page]
	switch s.rng.IntN(4) {
	case 0, 1:
		if p.owner != 0 && p.former == 0 {
			p.former = p.owner
			s.met.Moved++
			s.enter(n, page, 0, false)
			s.drain(n, page)
		}
	case 2:
		if p.owner != 0 && p.present && p.former == 0 {
			back, grant := p.back, p.grant
			s.absent(n, page, back, grant)
		}
	case 3:
		t := s.threads[s.rng.IntN(len(s.threads))]
		s.met.Ended++
		if s.rng.IntN(2) == 0 {
			s.restart(t)
		} else {
			s.set(t.node, device.PLPktzCfg+8*uint32(t.iface), 0)
			s.set(t.node, device.PLMboxCfg+8*uint32(t.iface), 0)
			s.begin(t) // its numbers go on
		}
		life := t.life
		for ch := range 1 + s.rng.IntN(device.PktzChannels) {
			s.world.After(int64(s.rng.IntN(100_000)), func() { s.next(t, life, ch) })
		}
	}
	s.world.After(int64(s.rng.IntN(2_000_000)), s.churn)
}

// restart ends all threads of a slot by a new generation of its domain, and begins new ones, whose
// numbers may be any.
func (s *trees) restart(t *simThread) {
	n := t.node
	generation := t.generation + 1
	s.set(n, device.PLPDCfg+8*uint32(t.slot), device.PDCfg(t.pdid, generation))
	for _, o := range s.threads {
		if o.node != n {
			continue
		}
		ev := soc.Event{Kind: soc.MessageSent, Interface: o.iface, Destination: packetizer.Destination(n.id, device.MailboxGSAS, 0), N: 2, Words: [8]uint64{1 << 56, uint64(atomics.At(n.id, 0))}}
		n.Event(&ev)
		if n.SOC.PacketizerStatus(o.iface, 0) != device.PktzRefused {
			s.fail("a thread of a former domain of its slot sends")
		}
		o.generation = generation
		for ch := range o.numbers {
			for to := range o.numbers[ch] {
				o.numbers[ch][to] = uint16(s.rng.Uint32())
			}
		}
		s.begin(o)
	}
}

// absent makes a page one that is valid and not present.
func (s *trees) absent(n *treeNode, page int, back uint64, grant bool) {
	p := &n.pages[page]
	p.present = false
	e := device.GSASEntry{Protection: p.owner, Valid: true}
	if grant {
		e.Grant = 1
	}
	s.set(n, device.PLGSASPage, device.GSASRun(uint64(page), 1))
	s.set(n, device.PLGSASBack, back)
	s.set(n, device.PLGSASEntry, e.Encode())
}

// drain waits until nothing is under way on a page that was taken away, and makes it another tree's.
func (s *trees) drain(n *treeNode, page int) {
	s.set(n, device.PLGSASPage, device.GSASRun(uint64(page), 1))
	v, err := n.Window(device.PL).Read64(device.PLGSASEntry)
	if err != nil {
		s.fail("%v", err)
	}
	if v&device.GSASBusy != 0 {
		s.world.After(2000, func() { s.drain(n, page) })
		return
	}
	p := &n.pages[page]
	for i := range uint64(wordsUsed) {
		delete(n.words, p.back/32+i)
	}
	p.former, p.back = 0, 0
	s.world.After(int64(s.rng.IntN(500_000)), func() { s.enter(n, page, treeOf(s.rng.IntN(3)), s.rng.IntN(4) > 0) })
}

// drive brings in the pages that a node's unit wants.
func (s *trees) drive(n *treeNode) {
	for {
		page, err := n.Window(device.PL).Read64(device.PLGSASWant)
		if err != nil {
			s.fail("%v", err)
		}
		if page == device.GSASNoPage {
			break
		}
		s.met.Wanted++
		if page >= treePages || n.pages[page].owner == 0 || n.pages[page].present {
			s.fail("page %d is wanted: %+v", page, n.pages[page%treePages])
			return
		}
		p := &n.pages[page]
		took := int64(s.rng.IntN(200_000))
		if s.rng.IntN(3) == 0 {
			took *= 300 // longer than a thread waits before it asks again
		}
		s.world.After(took, func() {
			switch {
			case p.owner == 0 || p.present || p.former != 0:
			case s.rng.IntN(5) == 0:
				s.absent(n, int(page), p.back, p.grant) // it cannot be brought in
			default:
				p.present = true
				e := device.GSASEntry{Protection: p.owner, Valid: true, Present: true}
				if p.grant {
					e.Grant = 1
				}
				s.set(n, device.PLGSASPage, device.GSASRun(page, 1))
				s.set(n, device.PLGSASBack, p.back)
				s.set(n, device.PLGSASEntry, e.Encode())
			}
		})
	}
	s.world.After(300_000, func() { s.drive(n) })
}

// Run runs the scenario to its end.
func (s *trees) Run() error {
	over := func() bool {
		if s.err != nil {
			return true
		}
		for _, t := range s.threads {
			for _, j := range t.current {
				if j != nil && !j.over && j.life == t.life {
					return false
				}
			}
		}
		return s.left <= 0
	}
	if err := s.world.Run(600e9, over); err != nil {
		return err
	}
	if s.err == nil {
		if err := s.world.Settle(2e9); err != nil { // late messages change nothing
			return err
		}
	}
	for _, n := range s.nodes {
		st := n.SOC.GSAS()
		s.met.Repeated += int(st.Repeated)
		s.met.Stale += int(st.Stale)
		if s.err == nil && (st.InFlight != 0 || st.Forged != 0) {
			s.fail("node %d: %+v at the end", n.id, st)
		}
	}
	return s.err
}
