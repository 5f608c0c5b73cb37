package scenario

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/sim"
	"github.com/exanet/pfd/internal/sim/topology"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/r5"
)

// ErrViolation reports that a simulated system did what it must not do. The error's text says what.
var ErrViolation = errors.New("violation")

// Limits and addresses of a run (defined by this project).
const (
	// With more nodes or bytes than these, memory has no content: data that is read is marked with
	// its place, and the marks and the places of all written data are checked.
	contentNodes = 64
	contentBytes = 256 << 20

	memoryBase  = device.VA(0x7f00_0000_0000)
	pageSize    = device.PageSize
	wordsSize   = 16
	settle      = int64(1e9) // after the last transfer's end: nothing may change any more
	checkCancel = 1 << 14    // events between two looks at the context
)

// Options of a run.
type Options struct {
	// Watch receives the events of transfers, nil: nobody does.
	Watch func(*Event)
	// Queues receives the levels of the queues of a topology's links as they change, nil: nobody does.
	Queues func(*Level)
}

// run is a scenario that runs.
type run struct {
	file      *File
	world     *sim.World
	net       *topology.Network
	seats     []*seat
	jobs      []job
	log       *log
	rng       *rand.Rand
	sometimes []*Inject // replay and evict-again
	left      int       // transfers that have not ended
	err       error
	// content: memory has content.
	content bool
}

// seat is the process of a node.
type seat struct {
	*sim.Process
	node    int
	size    int // bytes of memory
	regions []region
	free    []int     // write channels
	tags    []int     // of reads
	waiting [2][]*job // writes and reads that wait for a channel or a tag
	write   [device.WriteChannels]*job
	read    [device.WriteChannels]*job // by the place of the tag
	uses    [device.WriteChannels]int  // of these places
	dead    bool
	back    bool     // it is dead, and another process follows
	muted   bool     // it has withdrawn the rights of processes with other PDIDs
	late    []*job   // that wait for it
	harms   []string // that explain failures now
	before  []byte   // memory outside of all destinations
}

// region is the destination of a transfer in a process's memory.
type region struct {
	from, to int
	job      *job
}

// job is a transfer that runs.
type job struct {
	Transfer
	index    int
	src, dst *seat
	srcAt    int // in the source's memory
	dstAt    int
	wordsAt  int // completion words in the destination's memory, -1: none
	desc     device.Descriptor
	channel  int    // or place of the tag
	tag      uint16 // of a read: as in package rdma, it repeats after 512 uses of its place
	plan     int
	tries    int
	next     []*job   // what starts after it
	landed   []uint64 // of each block, a bit for each packet that was written
	words    bool     // the completion words are written
	want     []byte

	issued   bool
	from, to *sim.Process // its ends, when the transfer was described
	lost     bool         // the destination's process has gone since

	started, ended int64 // ns; ended -1: not yet
	status         uint8
	doomed         string // why it may fail
}

// initiator returns the process that asks for the transfer.
func (j *job) initiator() *seat {
	if j.Read {
		return j.dst
	}
	return j.src
}

// kind returns 1 for a read, and 0 for a write.
func (j *job) kind() int {
	if j.Read {
		return 1
	}
	return 0
}

// name describes a transfer in words.
func (j *job) name() string {
	kind := "write"
	if j.Read {
		kind = "read"
	}
	return fmt.Sprintf("transfer %d, a %s of %d bytes from node %d to node %d", j.index, kind, j.Size, j.From, j.To)
}

// Run runs a scenario to its end. The report is valid up to an error. Errors match ErrViolation, ErrFile,
// or the context's.
func Run(ctx context.Context, f *File, o Options) (*Report, error) {
	transfers, err := f.Expand()
	if err != nil {
		return nil, err
	}
	return runTransfers(ctx, f, transfers, o)
}

func runTransfers(ctx context.Context, f *File, transfers []Transfer, o Options) (*Report, error) {
	r := &run{file: f, rng: rand.New(rand.NewPCG(f.Seed, 0x5a3e))}
	if o.Watch != nil {
		r.log = newLog(r, o.Watch)
	}
	if err := r.build(transfers); err != nil {
		return nil, err
	}
	if o.Queues != nil {
		r.world.WatchQueues(func(link, queued, waiting int) {
			l := &r.net.Links[link]
			o.Queues(&Level{r.world.Now(), l.From, l.To, queued, waiting})
		})
	}
	err := r.play(ctx)
	return r.report(), err
}

func (r *run) build(transfers []Transfer) (err error) {
	f := r.file
	nodes, err := f.nodes()
	if err != nil {
		return err
	}
	if r.net, err = f.Topology.network(); f.Topology.Nodes == 0 && f.Topology.Kind == "full" {
		t := f.Topology
		t.Nodes = nodes
		r.net, err = t.network()
	}
	if err != nil {
		return err
	}
	policy, err := pagein.ParsePolicy(f.Driver.Policy)
	if err != nil {
		return err
	}
	options, err := r5.ParseOptions(f.Firmware.Options)
	if err != nil {
		return err
	}
	w := &f.Firmware
	r.world, err = sim.New(sim.Config{
		Seed: f.Seed, Nodes: nodes, Topology: r.net, Costs: f.Costs.costs(), Policy: policy, NoTXFIFO: w.NoTXFIFO,
		Outstanding: uint32(w.Outstanding), TimeoutUS: uint32(w.Timeout / 1e3), GuardUS: uint32(w.Guard / 1e3),
		Firmware: options, PathFeedback: w.Rate == pathFeedback, IDs: w.IDs, FIFO: w.FIFO, Contexts: w.Contexts, Injection: link.Injection{Routes: f.Topology.Routes},
	})
	if err != nil {
		return err
	}
	r.place(nodes, transfers)
	for _, s := range r.seats {
		if err := r.attach(s); err != nil {
			return err
		}
	}
	for i := range r.jobs {
		j := &r.jobs[i]
		r.describe(j)
		if !f.Cold {
			r.world.Node(j.To).SOC.Introduce(r.world.Node(j.From).SOC)
		}
	}
	for i := range f.Inject {
		r.inject(&f.Inject[i])
	}
	for _, s := range r.seats {
		s.before = s.outside()
	}
	r.world.Observe(&judge{r: r})
	return nil
}

// channels makes all channels and tags of a process free.
func (s *seat) channels() {
	s.free, s.tags, s.waiting = nil, nil, [2][]*job{}
	s.write, s.read = [device.WriteChannels]*job{}, [device.WriteChannels]*job{}
	for c := range device.WriteChannels {
		s.free = append(s.free, device.WriteChannels-1-c)
		s.tags = append(s.tags, device.WriteChannels-1-c)
	}
}

// place assigns each transfer its own memory at both ends.
func (r *run) place(nodes int, transfers []Transfer) {
	for i := range nodes {
		s := &seat{node: i}
		s.channels()
		r.seats = append(r.seats, s)
	}
	take := func(s *seat, size, align int) int {
		at := (s.size + align - 1) / align * align
		s.size = at + size
		return at
	}
	r.jobs = make([]job, len(transfers))
	bytes := 0
	for i := range transfers {
		j := &r.jobs[i]
		*j = job{Transfer: transfers[i], index: i, wordsAt: -1, ended: -1}
		j.src, j.dst = r.seats[j.From], r.seats[j.To]
		j.srcAt, j.dstAt = take(j.src, j.Size, pageSize), take(j.dst, j.Size, pageSize)
		if j.Read {
			j.wordsAt = take(j.dst, wordsSize, wordsSize)
		}
		j.landed = make([]uint64, (j.Size+device.BlockSize-1)/device.BlockSize)
		j.dst.regions = append(j.dst.regions, region{j.dstAt, j.dstAt + j.Size, j})
		bytes += 2 * j.Size
		if j.After >= 0 {
			before := &r.jobs[j.After]
			before.next = append(before.next, j)
		}
	}
	r.content = nodes <= contentNodes && bytes <= contentBytes
	r.left = len(r.jobs)
}

func (r *run) attach(s *seat) (err error) {
	n, pages := r.world.Node(s.node), (s.size+pageSize-1)/pageSize+1
	if s.node%2 == 1 && r.withdraws() {
		// Every node's first process of a user has the same PDID, to which it cannot withdraw a right:
		// take the second one.
		if _, err := n.AttachEmpty(1000, memoryBase, 1); err != nil {
			return err
		}
	}
	if r.content {
		s.Process, err = n.Attach(1000, memoryBase, pages)
	} else {
		s.Process, err = n.AttachEmpty(1000, memoryBase, pages)
	}
	if err != nil {
		return err
	}
	p := s.Process
	s.OnDone = func(ch int, done uint32, status uint8) {
		if j := s.write[ch]; j != nil && s.Process == p {
			s.write[ch] = nil
			s.free = append(s.free, ch)
			r.end(j, status)
		}
	}
	s.OnWords = func() {
		for _, j := range s.read {
			if j != nil && j.words && s.Process == p {
				r.end(j, 0)
			}
		}
	}
	s.OnMail = func(src mailbox.Source, words [device.PktzMaxWords]uint64) {
		if s.Process == p {
			r.answered(s, src, words[0])
		}
	}
	return nil
}

// describe fills in a transfer's descriptor, the states of its pages and its bytes.
func (r *run) describe(j *job) {
	j.desc = device.Descriptor{
		Src: memoryBase + device.VA(j.srcAt), Dst: memoryBase + device.VA(j.dstAt), Size: uint32(j.Size), Urgent: j.Urgent,
		First: 0xf125_0000_0000 + uint64(j.index), Last: 0x1a57_0000_0000 + uint64(j.index),
		DstNode: device.NodeID(j.To), DstPDID: j.dst.Domain.PDID, DstGeneration: j.dst.Domain.Generation,
	}
	if j.wordsAt >= 0 {
		j.desc.Notify = memoryBase + device.VA(j.wordsAt)
	}
	j.from, j.to = j.src.Process, j.dst.Process
	rng := rand.New(rand.NewPCG(j.Pages, 0xab5e47))
	for _, end := range []struct {
		s      *seat
		at     int
		absent float64
	}{{j.src, j.srcAt, j.Gone}, {j.dst, j.dstAt, j.Absent}} {
		for at := end.at; at < end.at+j.Size; at += pageSize {
			if rng.Float64() >= end.absent {
				end.s.Touch(at, min(at+pageSize, end.at+j.Size))
			}
		}
	}
	if j.wordsAt >= 0 {
		j.dst.Touch(j.wordsAt, j.wordsAt+wordsSize)
	}
	if !r.content {
		return
	}
	b := j.src.Data[j.srcAt : j.srcAt+j.Size]
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	j.want = bytes.Clone(b)
}

// outside returns a process's memory with all that transfers write blanked.
func (s *seat) outside() []byte {
	b := bytes.Clone(s.Data)
	for _, g := range s.regions {
		if b != nil {
			clear(b[g.from:g.to])
			if w := g.job.wordsAt; w >= 0 {
				clear(b[w : w+wordsSize])
			}
		}
	}
	return b
}

// regionAt returns the transfer that writes to a place of memory, nil if none does.
func (s *seat) regionAt(va device.VA) *job {
	at := int(va - memoryBase)
	i, found := slices.BinarySearchFunc(s.regions, at, func(g region, at int) int { return cmp.Compare(g.from, at) })
	if !found {
		i--
	}
	if i >= 0 && at < s.regions[i].to {
		return s.regions[i].job
	}
	return nil
}

func (r *run) wrong(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w at %v: %s", ErrViolation, Duration(r.world.Now()), fmt.Sprintf(format, args...))
	}
}

// play runs the transfers, and then waits for frames that come late.
func (r *run) play(ctx context.Context) error {
	for i := range r.jobs {
		if j := &r.jobs[i]; j.After < 0 {
			r.world.After(j.Start, func() { r.start(j) })
		}
	}
	events := 0
	stop := func() bool {
		if events++; events%checkCancel == 0 && ctx.Err() != nil {
			return true
		}
		return r.left == 0
	}
	err := r.world.Run(int64(r.file.Limit), stop)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, sim.ErrStuck):
		return r.late()
	case r.err != nil:
		return r.err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrViolation, err)
	}
	if err := r.world.Settle(settle); err != nil && r.err == nil {
		return fmt.Errorf("%w: %w", ErrViolation, err)
	}
	return r.judge()
}

// late reports the first transfer that has not ended.
func (r *run) late() error {
	for i := range r.jobs {
		if j := &r.jobs[i]; j.ended < 0 {
			return fmt.Errorf("%w: %s has not ended at %v, and %d others", ErrViolation, j.name(), r.file.Limit, r.left-1)
		}
	}
	return fmt.Errorf("%w: the simulation stopped at %v", ErrViolation, Duration(r.world.Now()))
}

// start starts a transfer, or makes it wait for a channel.
func (r *run) start(j *job) {
	s := j.initiator()
	for _, end := range []*seat{j.src, j.dst} {
		switch {
		case j.ended >= 0:
			return
		case end.dead && end.back:
			end.late = append(end.late, j)
			return
		case len(end.harms) > 0:
			j.doomed = end.harms[0]
		}
	}
	if j.started == 0 {
		j.started = max(r.world.Now(), 1)
	}
	free := &s.free
	if j.Read {
		free = &s.tags
	}
	switch {
	case s.dead:
		r.end(j, device.StatusGone)
		return
	case len(*free) == 0:
		s.waiting[j.kind()] = append(s.waiting[j.kind()], j)
		return
	}
	j.channel = (*free)[len(*free)-1]
	*free = (*free)[:len(*free)-1]
	if j.Read {
		j.tag = uint16(s.uses[j.channel]*device.WriteChannels|j.channel) & (1<<14 - 1)
		s.uses[j.channel]++
	}
	delay := r.world.Cost().Firmware
	if j.Touch {
		delay += r.touch(j)
	}
	r.world.After(delay, func() {
		if j.ended >= 0 {
			return
		}
		j.issued = true
		r.log.add(j, Started, -1, 0)
		if j.Read {
			s.read[j.channel] = j
			r.ask(j)
			return
		}
		s.write[j.channel] = j
		s.Write(j.channel, j.desc)
	})
}

// touch makes the target's pages present, and returns how long that takes.
func (r *run) touch(j *job) int64 {
	n := j.dst.Missing(j.dstAt, j.dstAt+j.Size)
	j.dst.Touch(j.dstAt, j.dstAt+j.Size)
	if n == 0 {
		return 0
	}
	return r.world.Cost().Touch + int64(n-1)*r.world.Cost().Page
}

// ask sends a read's request as the library does: again and again, until it is answered.
func (r *run) ask(j *job) {
	if j.ended >= 0 || j.dst.dead {
		return
	}
	r.request(j, j.desc.Size)
	r.askAfter(j, min(int64(20e6)<<min(j.tries+1, 6), 1e9))
	j.tries++
}

// request sends a read's request; of size 0 it cancels the read.
func (r *run) request(j *job, size uint32) {
	p := j.dst
	m := mailbox.ReadRequest{
		PDID: p.Domain.PDID, Tag: j.tag, Size: size, Src: j.desc.Src, Dst: j.desc.Dst, Notify: j.desc.Notify,
		First: j.desc.First, Last: j.desc.Last, Target: j.from.Domain.PDID, TargetGeneration: j.from.Domain.Generation,
	}
	words := m.Encode()
	p.Send(j.tries%3, device.NodeID(j.From), device.MailboxRead, words[:]...)
}

func (r *run) askAfter(j *job, d int64) {
	j.plan++
	plan := j.plan
	r.world.After(d, func() {
		if plan == j.plan {
			r.ask(j)
		}
	})
}

// answered takes a firmware's answer to a read.
func (r *run) answered(s *seat, src mailbox.Source, word uint64) {
	a, err := mailbox.DecodeAnswer(word)
	if err != nil || src.PDID != 0 {
		return
	}
	j := s.read[a.Transaction%device.WriteChannels]
	switch {
	case j == nil || j.tag != uint16(a.Transaction): // it has ended
	case a.Sequence == 0: // asked for again later
		r.askAfter(j, 1e6)
	default:
		r.end(j, uint8(a.Sequence))
	}
}

// end ends a transfer, and starts those that wait for its end or for its channel.
func (r *run) end(j *job, status uint8) {
	if j.ended >= 0 {
		if !j.initiator().dead {
			r.wrong("%s has ended twice", j.name())
		}
		return
	}
	j.ended, j.status = r.world.Now(), status
	r.left--
	r.log.add(j, Ended, -1, 0)
	r.ended(j)
	s := j.initiator()
	if j.Read && s.read[j.channel] == j {
		s.read[j.channel] = nil
		s.tags = append(s.tags, j.channel)
	}
	for _, n := range j.next {
		r.world.After(0, func() { r.start(n) })
	}
	if w := &s.waiting[j.kind()]; len(*w) > 0 {
		n := (*w)[0]
		*w = (*w)[1:]
		r.world.After(0, func() { r.start(n) })
	}
}
