package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/rdma"
)

// errBytes says that a transfer brought other bytes than it should.
var errBytes = errors.New("wrong bytes")

// Perf measures transfers between this process, the initiator, and a target: a part of
// this process, a child of it, or a process that serves measurements by a name
// (ServePerf). It is used by one goroutine.
type Perf struct {
	daemon Daemon
	end    *perfEnd
	target *peer
	seed   uint64
	pids   []int // the initiator's, pfd's, and the target's where it is another
}

// perfAddress is where a target of a name and of this user listens. The name goes with its process.
func perfAddress(name string) *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("@exanet-perf-%d-%s", unix.Getuid(), name), Net: "unix"}
}

// ServePerf is the target of measurements by a name, one after the other, until ctx
// ends: it attaches to a node of pfd for each. ready is called when it can be found.
func ServePerf(ctx context.Context, d Daemon, o Options, name string, ready func()) error {
	nodes, err := d.Nodes(ctx, control.AllNodes)
	if err != nil {
		return err
	}
	node, err := nodeID(nodes, o.To)
	if err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", perfAddress(name))
	if err != nil {
		return fmt.Errorf("name %q: %w: another process serves it", name, err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // it ends Accept
	defer l.Close()
	ready()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("name %q: %w", name, err)
		}
		err = ours(c)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			err = serve(ctx, c, c, func(ctx context.Context, a attachment) (endpoint, error) {
				a.Socket, a.Node = o.Socket, node
				return attachRDMA(ctx, a)
			})
			stop()
		}
		_ = c.Close() // what it said was said
		if err != nil && ctx.Err() == nil && !errors.Is(err, errProcess) {
			return err
		}
	}
}

// ours refuses a connection of another user: the target would serve him.
func ours(c *net.UnixConn) error {
	var cred *unix.Ucred
	if err := sockets.Control(c, func(fd int) (err error) { cred, err = sockets.Peer(fd); return err }); err != nil {
		return fmt.Errorf("who measures: %w", err)
	}
	if int(cred.Uid) != unix.Getuid() || uids.Ambiguous(cred.Uid) {
		return fmt.Errorf("%w: user %d measures with a process of user %d", errProcess, cred.Uid, unix.Getuid())
	}
	return nil
}

// OpenPerf attaches the initiator to node o.From, and the target to o.To: the one that
// serves name, else a child by o.Command, else this process.
func OpenPerf(ctx context.Context, d Daemon, o Options, name string) (p *Perf, err error) {
	at, err := o.sides(ctx, d, name)
	if err != nil {
		return nil, err
	}
	p = &Perf{daemon: d, seed: uint64(time.Now().UnixNano()), pids: []int{unix.Getpid(), at.daemon}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	switch {
	case name != "":
		c, err := net.DialUnix("unix", nil, perfAddress(name))
		if err != nil {
			return p, fmt.Errorf("nobody serves the name %q (%w): start `exanetctl perf serve %s` first", name, err, name)
		}
		p.target = connected(c, nil)
	case len(o.Command) > 0:
		if p.target, err = start(ctx, "target", o); err != nil {
			return p, err
		}
		p.pids = append(p.pids, p.target.pid())
	default:
		mine, theirs := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- serve(ctx, theirs, theirs, attachRDMA) }()
		p.target = connected(mine, done)
	}
	ep, err := attachRDMA(ctx, at.from)
	if err != nil {
		return p, err
	}
	if p.end, err = newPerfEnd(ep.rdma()); err != nil {
		return p, errors.Join(err, ep.close())
	}
	a, err := p.target.call(order{Op: opAttach, Attach: at.to})
	if err == nil && name != "" {
		p.pids = append(p.pids, a.Attached.PID)
	}
	return p, err
}

// perf gives the target an order of a measurement.
func (p *Perf) perf(o op, q perfOrder) (perfOrder, error) {
	r, err := p.target.call(order{Op: o, Perf: q})
	return r.Perf, err
}

// Close ends the target, and both attachments.
func (p *Perf) Close() error {
	err := p.target.close()
	if p.end != nil {
		err = errors.Join(err, p.end.close(), p.end.ep.Close())
	}
	return err
}

// Pattern is the order in which parts of memory are transferred.
type Pattern string

// The patterns.
const (
	Sequential Pattern = "sequential"
	Strided    Pattern = "strided" // every seventh
	Random     Pattern = "random"  // each once
	Zipf       Pattern = "zipf"    // some often, most never: exponent 1.2
)

// Patterns are all of them.
var Patterns = []Pattern{Sequential, Strided, Random, Zipf}

// order gives n parts of as many.
func (t Pattern) order(n int, seed uint64) []int {
	r := rand.New(rand.NewPCG(seed, 0))
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	switch t {
	case Random:
		return r.Perm(n)
	case Zipf:
		z := rand.NewZipf(r, 1.2, 1, uint64(n-1))
		for i := range list {
			list[i] = int(z.Uint64())
		}
	case Strided:
		const step = 7
		for i, at, from := 0, 0, 0; i < n; i++ {
			list[i] = at
			if at += step; at >= n {
				from++
				at = from
			}
		}
	}
	return list
}

// PerfRun is what is measured: transfers in rows, each of its own part of memory that
// is made anew before each row. Every byte is checked after it.
type PerfRun struct {
	Memory Memory // of both ends' data; "": Shared
	Size   uint64
	Count  int           // transfers that count, at least; 0: as many as fit into Time
	Time   time.Duration // of the transfers themselves
	Depth  int           // in flight; 0: 1
	Read   bool
	Src    float64 // how likely a page of the source is absent, 0 to 1
	Dst    float64
	Parts  int // of a row, at most perfParts; 0: what perfArea holds
	Order  Pattern
	Notify bool // each tells the target that it has come: Depth 1, no Read
	Touch  bool // the destination is touched first, which counts
	// Prefetch has the initiator's own memory prefetched while the transfers go on, in
	// their order.
	Prefetch bool
	Sleep    bool          // the initiator sleeps until a transfer is over; else it polls
	Pause    time.Duration // before each transfer, with Depth 1
	Cold     bool          // no small writes before a row, which wake pfd up
}

// PerfResult is what came of it: of each transfer that counts how long it took, and with
// Notify how long until the target saw it.
type PerfResult struct {
	Memory    Memory  // of the initiator
	Latencies []int64 // ns
	Starts    []int64 // of each, CLOCK_MONOTONIC, ns
	Notified  []int64
	Rows      []PerfRow
	Pinned    int64 // the most bytes of VmLck and VmPin of all processes that take part, -1 unknown
}

// PerfRow is one row as a whole.
type PerfRow struct {
	Transfers int
	Bytes     uint64
	Elapsed   time.Duration
	Start     int64 // of the first transfer, CLOCK_MONOTONIC, ns
}

// Transfers returns how many there were, those that do not count included.
func (r *PerfResult) Transfers() (n int) {
	for _, w := range r.Rows {
		n += w.Transfers
	}
	return n
}

// Rate gives bytes and transfers a second: all rows, and the best one's.
func (r *PerfResult) Rate() (bytes, transfers, peak float64) {
	var sum PerfRow
	for _, w := range r.Rows {
		sum.Transfers += w.Transfers
		sum.Bytes += w.Bytes
		sum.Elapsed += w.Elapsed
		peak = max(peak, float64(w.Bytes)/w.Elapsed.Seconds())
	}
	if sum.Elapsed > 0 {
		bytes, transfers = float64(sum.Bytes)/sum.Elapsed.Seconds(), float64(sum.Transfers)/sum.Elapsed.Seconds()
	}
	return bytes, transfers, peak
}

// Amid gives the latencies of the transfers that began and ended while each of others, which
// has these rows, had one of them under way.
func (r *PerfResult) Amid(others [][]PerfRow) (list []int64) {
	for i, ns := range r.Latencies {
		begin, end := r.Starts[i], r.Starts[i]+ns
		idle := func(rows []PerfRow) bool {
			return !slices.ContainsFunc(rows, func(w PerfRow) bool { return w.Start <= begin && end <= w.Start+w.Elapsed.Nanoseconds() })
		}
		if !slices.ContainsFunc(others, idle) {
			list = append(list, ns)
		}
	}
	return list
}

// Check refuses what cannot be measured.
func (q *PerfRun) Check() error {
	return refuse(
		refusal{q.Size < 1 || q.Size > MaxSize, fmt.Sprintf("size %d: want 1 to %d bytes", q.Size, uint64(MaxSize))},
		refusal{q.Depth > MaxParallel, fmt.Sprintf("depth %d: want at most %d", q.Depth, MaxParallel)},
		refusal{q.Memory != "" && !slices.Contains(Memories, q.Memory), fmt.Sprintf("memory %q: want one of %q", q.Memory, Memories)},
		refusal{q.Order != "" && !slices.Contains(Patterns, q.Order), fmt.Sprintf("pattern %q: want one of %v", q.Order, Patterns)},
		refusal{q.Count < 1 && q.Time <= 0, "give a count (-n) or a duration (-D)"},
		refusal{q.Src < 0 || q.Src > 1 || q.Dst < 0 || q.Dst > 1, "a probability is 0 to 1"},
		refusal{q.Notify && (q.Read || q.Depth > 1), "a notification needs writes one after the other"},
		refusal{q.Notify && q.Order == Zipf, "a notification needs a part a transfer"},
	)
}

// cold gives how many transfers, the first of a row of n, do not count: they meet caches
// of what came between the rows.
func cold(n int) int { return min(n/4, 16) }

// Run measures.
func (p *Perf) Run(ctx context.Context, q PerfRun) (PerfResult, error) {
	var r PerfResult
	if err := q.Check(); err != nil {
		return r, err
	}
	q.Depth = max(q.Depth, 1)
	if q.Parts <= 0 || q.Parts > perfParts {
		q.Parts = int(min(max(perfArea/stride(q.Size), 4, 2*uint64(q.Depth)), perfParts))
	}
	if err := p.reserve(q.Memory, q.Size, q.Parts, false); err != nil {
		return r, err
	}
	r.Memory = p.end.kind
	for spent := time.Duration(0); ; {
		if err := p.row(ctx, &q, &r); err != nil {
			if ctx.Err() == nil && ended(ctx, p.daemon, p.pids[1]) {
				err = fmt.Errorf("%w while transfers of %d bytes were measured (status %d)", control.ErrEnded, q.Size, device.StatusGone)
			}
			return r, err
		}
		spent += r.Rows[len(r.Rows)-1].Elapsed
		if q.Count > 0 && len(r.Latencies) >= q.Count || q.Count == 0 && spent >= q.Time {
			return r, nil
		}
	}
}

// reserve gives both ends memory for parts, which it had before but for anew.
func (p *Perf) reserve(memory Memory, size uint64, parts int, anew bool) error {
	if err := p.end.use(memory); err != nil || !anew && p.end.size == size && p.end.parts == parts {
		return err
	}
	if err := p.end.make(memory, size, parts); err != nil {
		return err
	}
	a, err := p.perf(opPerfMake, perfOrder{Memory: memory, Size: size, Parts: parts})
	if p.end.toData, p.end.toWords = a.Data, a.Words; err != nil {
		p.end.size = 0
	}
	return err
}

// A process that was just busy is not itself for a while: Go's runtime looks every 20 us
// what there is to do, on a processor that others need.
const perfRest = 20 * time.Millisecond

// row makes one row of transfers.
func (p *Perf) row(ctx context.Context, q *PerfRun, r *PerfResult) error {
	p.seed++
	parts := q.Order.order(p.end.parts, p.seed)
	src, err := p.fill(q)
	if err != nil {
		return err
	}
	if !q.Cold {
		if err := p.warm(ctx); err != nil {
			return err
		}
	}
	var touched time.Duration
	if q.Touch {
		start := time.Now()
		if q.Read {
			p.end.touch()
		} else if _, err := p.perf(opPerfTouch, perfOrder{}); err != nil {
			return err
		}
		touched = time.Since(start)
	}
	if q.Notify {
		if err := p.target.send(order{Op: opPerfWatch, Perf: perfOrder{Order: parts, Last: p.seed}}); err != nil {
			return err
		}
	}
	var prefetched chan error
	if q.Prefetch {
		prefetched = make(chan error, 1)
		go func() { prefetched <- p.prefetch(ctx, q, parts) }()
	}
	latencies, starts, elapsed, err := p.transfers(ctx, q, parts)
	if q.Prefetch {
		err = errors.Join(err, <-prefetched)
	}
	if err != nil {
		return err
	}
	skip := cold(len(latencies))
	for _, ns := range latencies[skip:] {
		r.Latencies = append(r.Latencies, ns+touched.Nanoseconds()/int64(len(parts)))
	}
	r.Starts = append(r.Starts, starts[skip:]...)
	if q.Notify {
		w, err := p.target.receive()
		if err != nil {
			return err
		}
		for i := skip; i < len(starts); i++ {
			r.Notified = append(r.Notified, w.Perf.Times[i]-starts[i])
		}
	}
	r.Rows = append(r.Rows, PerfRow{len(parts), q.Size * uint64(len(parts)), elapsed + touched, starts[0]})
	n, err := pinned(p.pids...)
	switch {
	case err != nil:
		r.Pinned = -1
	case r.Pinned >= 0:
		r.Pinned = max(r.Pinned, n)
	}
	if q.Read {
		return p.end.check(q.Size, parts, src)
	}
	_, err = p.perf(opPerfCheck, perfOrder{Size: q.Size, Order: parts, Fill: src})
	return err
}

// fill makes the memory of both ends what it is before a row, and tells what the source has.
func (p *Perf) fill(q *PerfRun) (src perfFill, err error) {
	src = perfFill{Seed: word(p.seed, 0), Absent: q.Src}
	dst := perfFill{Absent: q.Dst, Zero: true, Seed: word(p.seed, 1)}
	mine, theirs := src, dst
	if q.Read {
		mine, theirs = dst, src
	}
	if err := p.target.send(order{Op: opPerfFill, Perf: perfOrder{Memory: q.Memory, Fill: theirs}}); err != nil {
		return src, err
	}
	err = p.end.fill(mine)
	a, e := p.target.receive()
	p.end.toData = a.Perf.Data
	return src, errors.Join(err, e)
}

// Place is where a process has its part of a measurement's memory: parts of Size bytes.
type Place struct {
	PID  int
	VA   device.VA
	Size uint64
}

// Prepare makes the memory as Run does before a row of q.Parts writes, and tells where it
// is: to compare transfers with what moves or pages in the same memory without the device.
func (p *Perf) Prepare(q PerfRun) (src, dst Place, err error) {
	if err := p.reserve(q.Memory, q.Size, q.Parts, false); err != nil {
		return src, dst, err
	}
	p.seed++
	if _, err := p.fill(&q); err != nil {
		return src, dst, err
	}
	time.Sleep(perfRest)
	return Place{p.pids[0], p.end.data.name.VA, p.end.stride}, Place{p.Target(), p.end.toData.VA, p.end.stride}, nil
}

// Where a row has messages they are here in words, a pair of completion words after each.
const (
	wakePlace = pageSize
	askPlace  = pageSize + 256
	askSize   = 64
)

// warm has small writes go on for a while.
func (p *Perf) warm(ctx context.Context) error {
	return warmUp(ctx, perfRest, func() (transfer, error) {
		return p.end.ep.Write(ctx, rdma.WriteRequest{SrcVA: p.end.words.name.VA + wakePlace, Size: 16, Dst: p.end.toWords, Offset: wakePlace})
	})
}

// transfers makes those of a row, so many at once, and tells how long each took.
func (p *Perf) transfers(ctx context.Context, q *PerfRun, parts []int) (latencies, starts []int64, elapsed time.Duration, err error) {
	latencies, starts = make([]int64, len(parts)), make([]int64, len(parts))
	at, made := make([]int, q.Depth), 0 // what each slot transfers
	f := flight{
		slots: q.Depth, sleep: q.Sleep,
		next: func(slot int) bool {
			if made == len(parts) {
				return false
			}
			if q.Pause > 0 {
				time.Sleep(q.Pause)
			}
			at[slot], made = made, made+1
			return true
		},
		begin: func(slot int) (transfer, error) { return p.begin(ctx, q, parts[at[slot]]) },
		ended: func(slot int, start time.Time, took time.Duration, err error) error {
			starts[at[slot]], latencies[at[slot]] = p.end.clock.of(start), took.Nanoseconds()
			return err
		},
	}
	begin := time.Now()
	err = f.run(ctx)
	return latencies, starts, time.Since(begin), err
}

// prefetch brings in this end's memory, part by part.
func (p *Perf) prefetch(ctx context.Context, q *PerfRun, parts []int) error {
	for _, part := range parts {
		if err := p.end.ep.Prefetch(ctx, p.end.data.name.VA+device.VA(uint64(part)*p.end.stride), q.Size, q.Read); err != nil {
			return err
		}
	}
	return nil
}

func (p *Perf) begin(ctx context.Context, q *PerfRun, part int) (*rdma.Transfer, error) {
	at := uint64(part) * p.end.stride
	va := p.end.data.name.VA + device.VA(at)
	if q.Read {
		return p.end.ep.Read(ctx, rdma.ReadRequest{DstVA: va, Size: q.Size, Src: p.end.toData, Offset: at})
	}
	w := rdma.WriteRequest{SrcVA: va, Size: q.Size, Dst: p.end.toData, Offset: at}
	if q.Notify {
		w.Notify = &rdma.Notification{VA: p.end.toWords.VA + device.VA(16*part), First: 1, Last: p.seed}
	}
	return p.end.ep.Write(ctx, w)
}

// Target gives the target's process.
func (p *Perf) Target() int { return p.pids[len(p.pids)-1] }

// Skipped gives why a machine cannot do what was to be measured; "": err is something else.
func Skipped(err error) string {
	if errors.Is(err, ErrSkipped) || errors.Is(err, unix.EPERM) {
		return strings.TrimSpace(err.Error())
	}
	return ""
}
