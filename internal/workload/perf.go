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

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/internal/uids"
	"github.com/exanet/pfd/rdma"
	exstream "github.com/exanet/pfd/stream"
)

// errBytes means that a transfer wrote wrong bytes.
var errBytes = errors.New("wrong bytes")

// Perf measures transfers between this process, the initiator, and a target: a goroutine of
// this process, a child, or a process that serves measurements under a name
// (ServePerf). It is not safe for concurrent use.
type Perf struct {
	daemon Daemon
	end    *perfEnd
	target *peer
	seed   uint64
	pids   []int // initiator, pfd, and the target if it is another process

	to     attachment     // of the target
	stream *exstream.Conn // of Streams; nil: not dialed yet
	other  *rdma.Endpoint // of Messages, without a target in another process; nil: not attached yet
}

// perfAddress returns the address of this user's target with a name. It is an abstract
// socket, which ends with its process.
func perfAddress(name string) *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("@exanet-perf-%d-%s", unix.Getuid(), name), Net: "unix"}
}

// ServePerf is the target of measurements under a name, one after the other, until ctx
// ends. It attaches to a node of pfd for each. It calls ready when it listens.
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
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // this ends Accept
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
		_ = c.Close() // all replies have been sent
		if err != nil && ctx.Err() == nil && !errors.Is(err, errProcess) {
			return err
		}
	}
}

// ours returns an error if a connection is another user's, who must not use this target.
func ours(c *net.UnixConn) error {
	var cred *unix.Ucred
	if err := sockets.Control(c, func(fd int) (err error) { cred, err = sockets.Peer(fd); return err }); err != nil {
		return fmt.Errorf("user of the measuring process: %w", err)
	}
	if int(cred.Uid) != unix.Getuid() || uids.Ambiguous(cred.Uid) {
		return fmt.Errorf("%w: user %d cannot measure with a process of user %d", errProcess, cred.Uid, unix.Getuid())
	}
	return nil
}

// OpenPerf attaches the initiator to node o.From and the target to node o.To. The target is
// the process that serves name; without a name a child started by o.Command; without a
// command this process.
func OpenPerf(ctx context.Context, d Daemon, o Options, name string) (p *Perf, err error) {
	at, err := o.sides(ctx, d, name)
	if err != nil {
		return nil, err
	}
	p = &Perf{daemon: d, to: at.to, seed: uint64(time.Now().UnixNano()), pids: []int{unix.Getpid(), at.daemon}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	switch {
	case name != "":
		c, err := net.DialUnix("unix", nil, perfAddress(name))
		if err != nil {
			return p, fmt.Errorf("no process serves the name %q (%w): start `exanetctl perf serve %s` first", name, err, name)
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

// perf sends the target an order of a measurement and returns the answer.
func (p *Perf) perf(o op, q perfOrder) (perfOrder, error) {
	r, err := p.target.call(order{Op: o, Perf: q})
	return r.Perf, err
}

// Close ends the target and both attachments.
func (p *Perf) Close() error {
	if p.stream != nil {
		_ = p.stream.Close() // the measurement is over
	}
	err := p.target.close()
	if p.other != nil {
		err = errors.Join(err, p.other.Close())
	}
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
	Strided    Pattern = "strided" // every seventh part
	Random     Pattern = "random"  // each part once
	Zipf       Pattern = "zipf"    // some parts often, most never: exponent 1.2
)

// Patterns lists all patterns.
var Patterns = []Pattern{Sequential, Strided, Random, Zipf}

// order returns n numbers of parts, each below n.
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

// PerfRun describes a measurement: transfers in rows. Each transfer of a row has its own part
// of memory. The memory is made anew before each row, and every byte is checked after it.
type PerfRun struct {
	Memory Memory // of the data of both ends; "" means Shared
	Folios bool   // the kernel may bring in more than a page at a touch; PerfResult.Folio is what it does
	Size   uint64
	Count  int           // smallest number of samples; 0 means as many as fit into Time
	Time   time.Duration // sum of the rows' times
	Depth  int           // transfers in flight; 0 means 1
	Read   bool
	Src    float64 // probability that a page of the source is absent, 0 to 1
	Dst    float64 // the same for the destination
	Parts  int     // number of parts of a row, at most perfParts; 0 means those that fit into perfArea
	Order  Pattern
	Notify bool // each transfer notifies the target; needs Depth 1 and no Read
	Touch  bool // touch the destination first, and add that time to the latencies
	// Prefetch prefetches the initiator's own memory during the transfers, in their order.
	Prefetch bool
	Sleep    bool          // the initiator sleeps until a transfer ends instead of polling
	Pause    time.Duration // before each transfer, with Depth 1
	Cold     bool          // no warm-up writes before a row
}

// PerfResult is the result of a measurement. It has samples of all transfers but the first
// ones of each row (cold).
type PerfResult struct {
	Memory    Memory  // of the initiator
	Folio     Folio   // of both ends
	Latencies []int64 // ns
	Starts    []int64 // CLOCK_MONOTONIC, ns
	Notified  []int64 // time from the start until the target saw the notification, ns
	Rows      []PerfRow
	Pinned    int64 // largest sum of VmLck and VmPin of all processes involved, in bytes; -1 is unknown

	firsts []bool // for each of Latencies: the transfer brought in a folio
}

// PerfRow is the result of one row.
type PerfRow struct {
	Transfers int
	Bytes     uint64
	Elapsed   time.Duration
	Start     int64 // of the first transfer, CLOCK_MONOTONIC, ns
}

// Transfers returns the number of transfers, those without samples included.
func (r *PerfResult) Transfers() (n int) {
	for _, w := range r.Rows {
		n += w.Transfers
	}
	return n
}

// Rate returns bytes and transfers per second over all rows, and the bytes per second of the
// fastest row.
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

// ended returns err, or if pfd has ended an error that matches control.ErrEnded and says what was done then.
func (p *Perf) ended(ctx context.Context, err error, what string) error {
	if err == nil || ctx.Err() != nil || !ended(ctx, p.daemon, p.pids[1]) {
		return err
	}
	return fmt.Errorf("%w while %s", control.ErrEnded, what)
}

// Amid returns the latencies of the transfers that began and ended while each of the other
// measurements, of which others has the rows, was within one of its rows.
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

func (q *PerfRun) kind() memoryKind { return memoryKind{q.Memory, q.Folios} }

// Check returns an error that matches ErrRequest if the measurement is not possible.
func (q *PerfRun) Check() error {
	return refuse(
		refusal{q.Size < 1 || q.Size > MaxSize, fmt.Sprintf("size %d: want 1 to %d bytes", q.Size, uint64(MaxSize))},
		refusal{q.Depth > MaxParallel, fmt.Sprintf("depth %d: want at most %d", q.Depth, MaxParallel)},
		refusal{q.Memory != "" && !slices.Contains(Memories, q.Memory), fmt.Sprintf("memory %q: want one of %q", q.Memory, Memories)},
		refusal{q.Order != "" && !slices.Contains(Patterns, q.Order), fmt.Sprintf("pattern %q: want one of %v", q.Order, Patterns)},
		refusal{q.Count < 1 && q.Time <= 0, "give a count (-n) or a duration (-D)"},
		refusal{q.Src < 0 || q.Src > 1 || q.Dst < 0 || q.Dst > 1, "a probability must be from 0 to 1"},
		refusal{q.Notify && (q.Read || q.Depth > 1), "notifications need writes with depth 1"},
		refusal{q.Notify && q.Order == Zipf, "notifications need a part of their own for each transfer"},
	)
}

// cold returns the number of transfers at the start of a row of n that are no samples: the
// work between the rows has evicted their data from the caches.
func cold(n int) int { return min(n/4, 16) }

// Run makes a measurement.
func (p *Perf) Run(ctx context.Context, q PerfRun) (PerfResult, error) {
	var r PerfResult
	if err := q.Check(); err != nil {
		return r, err
	}
	q.Depth = max(q.Depth, 1)
	if q.Parts <= 0 || q.Parts > perfParts {
		q.Parts = int(min(max(perfArea/stride(q.Size), 4, 2*uint64(q.Depth)), perfParts))
	}
	if err := p.reserve(q.kind(), q.Size, q.Parts, false); err != nil {
		return r, err
	}
	r.Memory, r.Folio = p.end.Memory, p.end.folio
	for spent := time.Duration(0); ; {
		if err := p.row(ctx, &q, &r); err != nil {
			return r, p.ended(ctx, err, fmt.Sprintf("transfers of %d bytes were measured (status %d)", q.Size, device.StatusGone))
		}
		spent += r.Rows[len(r.Rows)-1].Elapsed
		if q.Count > 0 && len(r.Latencies) >= q.Count || q.Count == 0 && spent >= q.Time {
			return r, nil
		}
	}
}

// reserve allocates memory for the parts at both ends. It keeps memory of the right size that
// is there already, unless anew is set.
func (p *Perf) reserve(kind memoryKind, size uint64, parts int, anew bool) error {
	if err := p.end.use(kind); err != nil || !anew && p.end.size == size && p.end.parts == parts {
		return err
	}
	if err := p.end.make(kind, size, parts); err != nil {
		return err
	}
	a, err := p.perf(opPerfMake, perfOrder{memoryKind: kind, Size: size, Parts: parts})
	if p.end.toData, p.end.toWords = a.Data, a.Words; err != nil {
		p.end.size = 0
	}
	if kind.Folios && err == nil && a.Folio.Pages == 0 {
		a.Folio.Single = "the other end is an exanetctl without folios: use a newer one"
	}
	p.end.folio = p.end.data.folio.and(a.Folio)
	return err
}

// perfRest is the time to wait before a measurement: after a process was busy, Go's runtime
// looks for work every 20 us, on a processor that other processes need.
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
	if r.Folio.Pages > 1 && max(q.Src, q.Dst) == 1 && !q.Touch {
		r.firsts = append(r.firsts, r.Folio.firsts(parts, p.end.stride, q.Size)[skip:]...)
	}
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
	p.pinned(r)
	if q.Read {
		return p.end.check(q.Size, parts, src)
	}
	_, err = p.perf(opPerfCheck, perfOrder{Size: q.Size, Order: parts, Fill: src})
	return err
}

// pinned completes a result with the memory that is pinned now.
func (p *Perf) pinned(r *PerfResult) {
	n, err := pinned(p.pids...)
	switch {
	case err != nil:
		r.Pinned = -1
	case r.Pinned >= 0:
		r.Pinned = max(r.Pinned, n)
	}
}

// fill fills the memory of both ends before a row and returns the content of the source.
func (p *Perf) fill(q *PerfRun) (src perfFill, err error) {
	src = perfFill{Seed: word(p.seed, 0), Absent: q.Src}
	dst := perfFill{Absent: q.Dst, Zero: true, Seed: word(p.seed, 1)}
	mine, theirs := src, dst
	if q.Read {
		mine, theirs = dst, src
	}
	if err := p.target.send(order{Op: opPerfFill, Perf: perfOrder{memoryKind: q.kind(), Fill: theirs}}); err != nil {
		return src, err
	}
	err = p.end.fill(mine)
	a, e := p.target.receive()
	p.end.toData = a.Perf.Data
	return src, errors.Join(err, e)
}

// Place is the location of one end's memory: consecutive parts of Size bytes at VA of PID.
type Place struct {
	PID  int
	VA   device.VA
	Size uint64
}

// Prepare fills the memory as Run does before a row of q.Parts writes, and returns its places.
// The caller can compare transfers with system calls that copy or page in the same memory.
func (p *Perf) Prepare(q PerfRun) (src, dst Place, err error) {
	if err := p.reserve(q.kind(), q.Size, q.Parts, false); err != nil {
		return src, dst, err
	}
	p.seed++
	if _, err := p.fill(&q); err != nil {
		return src, dst, err
	}
	time.Sleep(perfRest)
	return Place{p.pids[0], p.end.data.name.VA, p.end.stride}, Place{p.Target(), p.end.toData.VA, p.end.stride}, nil
}

// Offsets of messages in words; a pair of completion words follows each. Values are defined
// by this project.
const (
	wakePlace = pageSize
	askPlace  = pageSize + 256
	askSize   = 64
)

// warm makes small writes for perfRest, to wake pfd.
func (p *Perf) warm(ctx context.Context) error {
	return warmUp(ctx, perfRest, func() (transfer, error) {
		return p.end.ep.Write(ctx, rdma.WriteRequest{SrcVA: p.end.words.name.VA + wakePlace, Size: 16, Dst: p.end.toWords, Offset: wakePlace})
	})
}

// transfers makes the transfers of a row with q.Depth in flight. It returns the latency and
// the start of each, and the time of the row.
func (p *Perf) transfers(ctx context.Context, q *PerfRun, parts []int) (latencies, starts []int64, elapsed time.Duration, err error) {
	latencies, starts = make([]int64, len(parts)), make([]int64, len(parts))
	at, made := make([]int, q.Depth), 0 // at is the transfer of each slot
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

// prefetch prefetches this end's memory part by part.
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

// Target returns the process number of the target.
func (p *Perf) Target() int { return p.pids[len(p.pids)-1] }

// Skipped returns the reason why the machine does not support a measurement, or "" if err has
// another cause.
func Skipped(err error) string {
	if errors.Is(err, ErrSkipped) || errors.Is(err, unix.EPERM) {
		return strings.TrimSpace(err.Error())
	}
	return ""
}
