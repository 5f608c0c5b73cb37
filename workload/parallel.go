package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/exanet/pfd/device"
)

// Several transfers at once: each has buffers of its own at both ends.
const (
	opPrepareMany op = "prepare-many"
	opRunMany     op = "run-many"
	opVerifyMany  op = "verify-many"
)

// MaxParallel is the number of transfers that a process has in flight at most.
const MaxParallel = device.WriteChannels

// piece is one of several transfers, in orders and replies.
type piece struct {
	Prepare prepare `json:"prepare,omitzero"`
	Remote  string  `json:"remote,omitempty"`
	Urgent  bool    `json:"urgent,omitempty"`
	Outcome outcome `json:"outcome,omitzero"`
	Place   int     `json:"place,omitempty"` // in the order of completion, from 1
	Verify  verify  `json:"verify,omitzero"`
	Verdict verdict `json:"verdict,omitzero"`
}

// starter is an endpoint that can more than plain writes.
type starter interface {
	start(va device.VA, size uint64, remote string, offset uint64, read, urgent bool) (transfer, error)
}

// begin starts a transfer as an order says.
func (p *process) begin(b *buffer, o *writeOrder) (transfer, error) {
	return p.beginPart(b, o, 0, b.request.Size)
}

// beginPart starts the transfer of size bytes of a buffer from an offset on.
func (p *process) beginPart(b *buffer, o *writeOrder, offset, size uint64) (transfer, error) {
	if !o.Read && !o.Urgent && offset == 0 {
		return p.endpoint.write(b.addr(), size, o.Remote)
	}
	s, ok := p.endpoint.(starter)
	if !ok {
		return nil, errors.New("this endpoint makes plain writes only")
	}
	return s.start(b.addr()+device.VA(offset), size, o.Remote, offset, o.Read, o.Urgent)
}

func (p *process) dropMany() error {
	var errs []error
	for _, b := range p.many {
		errs = append(errs, b.close())
	}
	p.many = nil
	return errors.Join(errs...)
}

func (p *process) prepareMany(list []piece) ([]piece, error) {
	if err := p.dropMany(); err != nil {
		return nil, err
	}
	out := make([]piece, len(list))
	for i := range list {
		b, err := newBufferOf(list[i].Prepare, p.endpoint.sharer())
		if err != nil {
			return nil, err
		}
		p.many = append(p.many, b)
		if out[i].Remote, err = p.endpoint.export(b.addr(), b.request.Size); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// runMany starts all transfers one right after the other and takes them in the
// order in which they end.
func (p *process) runMany(ctx context.Context, o order) ([]piece, error) {
	if len(o.Many) != len(p.many) {
		return nil, fmt.Errorf("%d transfers for %d buffers", len(o.Many), len(p.many))
	}
	ctx, cancel := context.WithTimeout(ctx, o.Write.Timeout)
	defer cancel()
	out := make([]piece, len(o.Many))
	started := make([]time.Time, len(o.Many))
	open := make([]transfer, len(o.Many))
	for i, m := range o.Many {
		w := writeOrder{Remote: m.Remote, Read: o.Write.Read, Urgent: m.Urgent}
		started[i] = time.Now()
		t, err := p.begin(p.many[i], &w)
		if err != nil {
			out[i].Outcome.Error = err.Error()
			continue
		}
		open[i] = t
	}
	place := 0
	for since := monotonic(); ; offer(since) {
		left := 0
		for i, t := range open {
			if t == nil {
				continue
			}
			over, err := t.poll()
			if !over {
				left++
				continue
			}
			open[i] = nil
			place++
			out[i].Place = place
			out[i].Outcome = outcome{Done: err == nil, LatencyNS: time.Since(started[i]).Nanoseconds()}
			if err != nil {
				out[i].Outcome.Error = err.Error()
			}
		}
		if left == 0 {
			return out, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d of %d transfers did not end within %v", left, len(open), o.Write.Timeout)
		}
	}
}

func (p *process) verifyMany(list []piece) ([]piece, error) {
	if len(list) != len(p.many) {
		return nil, fmt.Errorf("%d verdicts asked for %d buffers", len(list), len(p.many))
	}
	out := make([]piece, len(list))
	for i, b := range p.many {
		var err error
		if out[i].Verdict, err = b.check(list[i].Verify, p.pages); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Completion is one of several transfers that ran at once.
type Completion struct {
	Transfer  int     `json:"transfer"` // in the order of starting, from 0
	Size      uint64  `json:"size_bytes"`
	Class     string  `json:"class"` // normal or urgent, as asked for
	Done      bool    `json:"done"`
	LatencyUS float64 `json:"latency_us"` // from its start to its end
	Error     string  `json:"error,omitempty"`
}

// Parallel is what one of several transfers is to be.
type Parallel struct {
	Size   uint64
	Urgent bool
}

// Names of the classes that a transfer may be asked to have.
const (
	ClassNormal = "normal" // by its size
	ClassUrgent = "urgent" // high
)

// RunParallel makes all transfers of set at once, q.Count times, and gives the
// last round's order of completion beside the result. q.Size is ignored.
func RunParallel(ctx context.Context, d Daemon, q Request, set []Parallel) (Result, []Completion, error) {
	r := newResult(&q, Poll)
	if q.Timeout == 0 {
		q.Timeout = DefaultTimeout
	}
	order, err := runParallel(ctx, d, q, set, &r)
	return r, order, r.broken(ctx, err)
}

func runParallel(ctx context.Context, d Daemon, q Request, set []Parallel, r *Result) ([]Completion, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	if len(set) < 1 || len(set) > MaxParallel {
		return nil, fmt.Errorf("%w: %d transfers at once: want 1 to %d", ErrRequest, len(set), MaxParallel)
	}
	s, err := Open(ctx, d, q.Options, q.Seed)
	if err != nil {
		return nil, err
	}
	order, err := s.parallel(ctx, d, q, set, r)
	if err != nil || r.Failed > 0 {
		if ended := s.ended(ctx, d, q.Count*len(set)); ended != nil {
			_ = s.Close()
			return order, ended
		}
	}
	return order, errors.Join(err, s.Close())
}

func (s *Session) parallel(ctx context.Context, d Daemon, q Request, set []Parallel, r *Result) (list []Completion, err error) {
	before, err := s.tally(ctx, d, q.Options, r.CountersNode)
	if err != nil {
		return nil, err
	}
	var latencies []int64
	wrong := false
	defer func() {
		r.Verified = r.Transfers > 0 && !wrong && err == nil
		r.ThroughputGbps = throughput(r.Bytes, latencies)
		r.Latency = summarize(latencies)
	}()
	for range q.Count {
		if list, latencies, err = s.parallelOnce(q, set, r, latencies, &wrong); err != nil {
			return list, err
		}
	}
	after, err := s.tally(ctx, d, q.Options, r.CountersNode)
	if err == nil {
		after.since(before).put(r)
	}
	return list, err
}

func (s *Session) parallelOnce(q Request, set []Parallel, r *Result, latencies []int64, wrong *bool) ([]Completion, []int64, error) {
	src, dst := make([]piece, len(set)), make([]piece, len(set))
	for i, t := range set {
		s.transfers++
		src[i].Prepare = prepare{State: q.Src, Size: t.Size, Offset: q.Offset, Seed: word(s.seed, 2*s.transfers)}
		dst[i].Prepare = prepare{State: q.Dst, Size: t.Size, Offset: q.Offset, Seed: word(s.seed, 2*s.transfers+1)}
	}
	mine, theirs := src, dst
	if q.Read {
		mine, theirs = dst, src
	}
	_, b, err := s.both(order{Op: opPrepareMany, Many: mine}, order{Op: opPrepareMany, Many: theirs})
	if err != nil {
		return nil, latencies, err
	}
	run := make([]piece, len(set))
	for i := range run {
		run[i] = piece{Remote: b.Many[i].Remote, Urgent: set[i].Urgent}
	}
	reply, err := s.initiator.call(order{Op: opRunMany, Many: run, Write: writeOrder{Read: q.Read, Timeout: q.Timeout}})
	if err != nil {
		return nil, latencies, err
	}
	n, err := s.pinned()
	if err != nil {
		return nil, latencies, err // one of them has ended: no round after it is of use
	}
	r.pin(n)
	want := make([]piece, len(set))
	var list []Completion
	for i, p := range reply.Many {
		r.Transfers++
		c := Completion{Transfer: i, Size: set[i].Size, Class: ClassNormal, Done: p.Outcome.Done, LatencyUS: float64(p.Outcome.LatencyNS) / 1e3, Error: p.Outcome.Error}
		if set[i].Urgent {
			c.Class = ClassUrgent
		}
		list = append(list, c)
		if p.Outcome.Done {
			r.Bytes += set[i].Size
			latencies = append(latencies, p.Outcome.LatencyNS)
		} else {
			r.Failed++
			r.fail(p.Outcome.Error)
		}
		want[i].Verify = verify{Arrived: p.Outcome.Done, Source: src[i].Prepare.content(), SourceData: src[i].Prepare.data()}
		want[i].Verify.Partial = !p.Outcome.Done && q.Dst != ReadOnly && q.Dst != Unmapped
	}
	slices.SortStableFunc(list, func(a, b Completion) int { return reply.Many[a.Transfer].Place - reply.Many[b.Transfer].Place })
	look := [2]order{{Op: opVerifyMany, Many: make([]piece, len(set))}, {Op: opVerifyMany, Many: want}}
	if q.Read {
		look[0], look[1] = look[1], look[0]
	}
	x, y, err := s.both(look[0], look[1])
	if err != nil {
		return list, latencies, err
	}
	for _, side := range [][]piece{x.Many, y.Many} {
		for i, p := range side {
			if !p.Verdict.ok() {
				*wrong = true
				r.fail(fmt.Sprintf("transfer %d: %v", i, p.Verdict))
			}
		}
	}
	return list, latencies, nil
}
