package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/maybe"
)

// Request is a run of equal transfers.
type Request struct {
	Options
	Count    int
	Size     uint64
	Offset   uint64
	Src, Dst State
	Waiting  Waiting
	Warm     bool          // see Transfer
	Seed     uint64        // of the patterns
	Timeout  time.Duration // of one transfer; 0 means DefaultTimeout
	// Progress, where not nil, is called with each transfer that is over.
	Progress func(done int)
	Read     bool // the initiator reads the target's buffer, which is the source
	Urgent   bool // high class
}

// DefaultTimeout is how long a transfer may take. It is longer than what the
// firmware takes to give one up.
const DefaultTimeout = 60 * time.Second

// MaxSize is the largest transfer, bytes (spec/hardware.md 1).
const MaxSize = 1<<32 - 1

// MaxOffset is the largest offset, bytes.
const MaxOffset = 1 << 30

// Check refuses what cannot be carried out; its error matches ErrRequest. A
// size of 0 is no such thing: the library refuses it, and that is worth seeing.
func (q *Request) Check() error {
	return refuse(
		refusal{q.Count < 1, fmt.Sprintf("count %d: want 1 or more", q.Count)},
		refusal{q.Size > MaxSize, fmt.Sprintf("size %d: a transfer has at most %d bytes", q.Size, uint64(MaxSize))},
		refusal{q.Offset > MaxOffset, fmt.Sprintf("offset %d: want at most %d", q.Offset, MaxOffset)},
		refusal{q.From < 0 || q.To < 0, "nodes are counted from 0"},
	)
}

// Parallel is what one of several transfers is to be.
type Parallel struct {
	Size   uint64
	Urgent bool
}

// MaxParallel is the number of transfers that a process has in flight at most.
const MaxParallel = device.WriteChannels

// Names of the classes that a transfer may be asked to have.
const (
	ClassNormal = "normal" // by its size
	ClassUrgent = "urgent" // high
)

// Completion is one of several transfers that ran at once.
type Completion struct {
	Transfer  int     `json:"transfer"` // in the order of starting, from 0
	Size      uint64  `json:"size_bytes"`
	Class     string  `json:"class"` // normal or urgent, as asked for
	Done      bool    `json:"done"`
	LatencyUS float64 `json:"latency_us"` // from its start to its end
	Error     string  `json:"error,omitempty"`
}

// Run makes the transfers. The result is filled in whatever happens. The error
// says that the run could not be made, or was broken off, and stands in the
// result too; that transfers failed, or bytes were wrong, stands only there.
func Run(ctx context.Context, d Daemon, q Request) (Result, error) {
	q.Waiting = q.Waiting.resolve(q.Size)
	r, _, err := runSet(ctx, d, q, []Parallel{{q.Size, q.Urgent}})
	return r, err
}

// RunParallel is Run of all transfers of set at once, q.Count times. It polls, and returns
// the last round's order of completion beside the result. q.Size and q.Urgent are ignored.
func RunParallel(ctx context.Context, d Daemon, q Request, set []Parallel) (Result, []Completion, error) {
	q.Waiting = Poll
	return runSet(ctx, d, q, set)
}

func runSet(ctx context.Context, d Daemon, q Request, set []Parallel) (Result, []Completion, error) {
	r := newResult(&q)
	list, err := run(ctx, d, q, set, &r)
	return r, list, r.broken(ctx, err)
}

// broken takes the error that has broken a run off into the result.
func (r *Result) broken(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		// How the processes ended does not matter to who broke it off.
		err = fmt.Errorf("interrupted: %w", context.Cause(ctx))
	case errors.Is(err, control.ErrEnded):
		r.Error = nil // what this did to a transfer
	}
	r.fail(err.Error())
	return err
}

func run(ctx context.Context, d Daemon, q Request, set []Parallel, r *Result) ([]Completion, error) {
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
	list, err := s.run(ctx, d, q, set, r)
	if err != nil || r.Failed > 0 {
		if ended := s.ended(ctx, d, q.Count*len(set)); ended != nil {
			// What the processes say of it is its consequence.
			_ = s.Close()
			return list, ended
		}
	}
	return list, errors.Join(err, s.Close())
}

// ended gives an error that matches control.ErrEnded where pfd, of which nothing more can
// be had then, is what has broken the run off; it names the last transfer of so many. One
// that was begun, or can only be begun, has the status of a node that is gone.
func (s *Session) ended(ctx context.Context, d Daemon, count int) error {
	switch {
	case !ended(ctx, d, s.daemon):
		return nil
	case s.transfers == 0:
		return fmt.Errorf("%w before the first transfer", control.ErrEnded)
	}
	text := fmt.Sprintf("transfer %d", s.transfers)
	if count > 1 {
		text += fmt.Sprintf(" of %d", count)
	}
	if s.arrived {
		return fmt.Errorf("%w after %s", control.ErrEnded, text)
	}
	return fmt.Errorf("%w during %s (status %d)", control.ErrEnded, text, device.StatusGone)
}

// ended reports whether the pfd that was process pid is there no more.
func ended(ctx context.Context, d Daemon, pid int) bool {
	s, err := d.Status(ctx)
	return errors.Is(err, control.ErrNoDaemon) || err == nil && s.PID != pid
}

func (s *Session) run(ctx context.Context, d Daemon, q Request, set []Parallel, r *Result) ([]Completion, error) {
	before, err := s.count(ctx, d, q.Options, r.CountersNode)
	if err != nil {
		return nil, err
	}
	list, err := s.rounds(q, set, r)
	if r.Failed > 0 && err == nil && len(set) == 1 { // of several nobody knows which fault is whose
		s.explain(ctx, d, q.Options, r)
	}
	after, countErr := s.count(ctx, d, q.Options, r.CountersNode)
	if countErr == nil {
		then, now := before.counts(), after.counts()
		for i, n := range r.counts() {
			*n = now[i].Since(*then[i])
		}
		r.CountersOthers = max(before.CountersOthers, after.CountersOthers)
	}
	if err != nil {
		// The counters are worth having, but after this they may not be had.
		return list, err
	}
	return list, countErr
}

// explain says in the error of a run why a page of it did not come in, in place of what
// may be the cause, where the fault log tells. It is best effort.
func (s *Session) explain(ctx context.Context, d Daemon, o Options, r *Result) {
	faults, err := d.Faults(ctx, control.AllNodes, control.MaxFaults)
	if err != nil || r.Error == nil {
		return
	}
	for _, f := range slices.Backward(faults) {
		ours := f.Node == o.From && f.Slot == s.initiator.slot || f.Node == o.To && f.Slot == s.target.slot
		if ours && f.Reason != "" {
			text := fmt.Sprintf("%s (fault log of node %d): %s", f.Reason, f.Node, *r.Error)
			what, why, _ := strings.Cut(*r.Error, " failed: ")
			if _, status, ok := strings.Cut(why, ", status "); ok {
				status, _, _ = strings.Cut(status, ":")
				text = fmt.Sprintf("%s failed: status %s: %s (fault log of node %d)", what, status, f.Reason, f.Node)
			}
			r.Error = &text
			return
		}
	}
}

// rounds makes the transfers of set at once, q.Count times.
func (s *Session) rounds(q Request, set []Parallel, r *Result) (list []Completion, err error) {
	if q.Timeout == 0 {
		q.Timeout = DefaultTimeout
	}
	each := make([]Transfer, len(set))
	for i, p := range set {
		each[i] = Transfer{Size: p.Size, SrcOffset: q.Offset, DstOffset: q.Offset, Src: q.Src, Dst: q.Dst, Waiting: q.Waiting, Timeout: q.Timeout, Warm: q.Warm, Read: q.Read, Urgent: p.Urgent}
	}
	var latencies []int64
	wrong := false
	defer func() {
		r.Verified = r.Transfers > 0 && !wrong && err == nil // what was not checked is not verified
		r.ThroughputGbps = throughput(r.Bytes, latencies)
		r.Latency = summarize(latencies)
	}()
	for n := range q.Count {
		all, err := s.do(each)
		if err != nil {
			r.fail(err.Error())
			return list, err
		}
		list = nil
		for i, out := range all {
			r.Transfers++
			r.pin(out.Pinned)
			c := Completion{Transfer: i, Size: set[i].Size, Class: ClassNormal, Done: out.Arrived, LatencyUS: float64(out.Latency.Nanoseconds()) / 1e3, Error: out.Failure}
			if set[i].Urgent {
				c.Class = ClassUrgent
			}
			list = append(list, c)
			if out.Arrived {
				r.Bytes += set[i].Size
				latencies = append(latencies, out.Latency.Nanoseconds())
			} else {
				r.Failed++
				r.fail(out.Failure)
			}
			if out.Wrong != "" {
				wrong = true
				r.fail(fmt.Sprintf("transfer %d of %d: %s", n*len(set)+i+1, q.Count*len(set), out.Wrong))
			}
		}
		slices.SortFunc(list, func(a, b Completion) int { return all[a.Transfer].Place - all[b.Transfer].Place })
		if q.Progress != nil {
			q.Progress(n + 1)
		}
	}
	return list, nil
}

// pin takes what was pinned at a transfer.
func (r *Result) pin(n maybe.Number) {
	if !(r.PinnedBytes >= n) { // also where it is not known yet
		r.PinnedBytes = n
	}
}

// count reads the counters of the two domains, and those of a node, into a result. The
// pages that the processes bring in by themselves (touch) are theirs to count.
func (s *Session) count(ctx context.Context, d Daemon, o Options, node int) (c Result, err error) {
	c.unknown()
	domains, err := d.Domains(ctx, control.AllNodes)
	if err != nil {
		return c, err
	}
	a, b, err := s.both(order{Op: opStats}, order{Op: opStats})
	if err != nil {
		return c, err
	}
	counters, err := d.Counters(ctx, node)
	if err != nil {
		return c, err
	}
	const total = "_total"
	named := map[string]*maybe.Number{
		device.RAPFRx.String() + total: &c.RAPF, device.Retransmits.String() + total: &c.Retransmits,
		device.Timeouts.String() + total: &c.Timeouts, device.Guards.String() + total: &c.Guards,
	}
	for _, k := range counters {
		if n := named[k.Name]; n != nil && k.Node == node {
			*n = maybe.Number(k.Value)
		}
	}
	ours, others := 0, 0
	faults, pages := uint64(0), a.Pages+b.Pages
	for _, dom := range domains {
		initiator := dom.Node == o.From && dom.Slot == s.initiator.slot
		target := dom.Node == o.To && dom.Slot == s.target.slot
		switch {
		case initiator || target:
			ours++
			faults += dom.Faults
			pages += dom.PagesIn
		case dom.Node == node:
			others++
		}
	}
	if ours == 2 {
		c.Faults, c.PagesPagedIn = maybe.Number(faults), maybe.Number(pages)
	}
	if c.Retransmits.Known() { // else there may be more than are shown
		c.CountersOthers = maybe.Number(others)
	}
	return c, nil
}
