package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/maybe"
)

// Request is a run of equal transfers.
type Request struct {
	Options
	Count    int
	Size     uint64
	Offset   uint64 // of both buffers, from a 16 KiB boundary
	Src, Dst State
	Waiting  Waiting
	// Warm makes a small write into present memory before each transfer, which is not
	// measured. It wakes pfd and its threads, which go to sleep while the buffers are made
	// and checked, as they do not when transfers follow one another.
	Warm    bool
	Seed    uint64        // of the patterns
	Timeout time.Duration // of one transfer; 0 means DefaultTimeout
	// Progress, if not nil, is called after each round with the number of rounds done.
	Progress func(done int)
	Read     bool // the initiator reads the target's buffer, which is the source
	Urgent   bool // high class
	// Folios makes the buffers of memory of the library that comes in by folios, in states Absent
	// and Present. Result.Folio is how they come in.
	Folios bool
}

// DefaultTimeout bounds one transfer. It is longer than the firmware retransmits
// before it reports a failure.
const DefaultTimeout = 60 * time.Second

// MaxSize is the size of the largest transfer, in bytes (spec/hardware.md 1).
const MaxSize = 1<<32 - 1

// MaxOffset is the largest offset, in bytes.
const MaxOffset = 1 << 30

// Check returns an error that matches ErrRequest if the request cannot be carried out.
// It accepts size 0, so that a test can see how the library refuses it.
func (q *Request) Check() error {
	return refuse(
		refusal{q.Count < 1, fmt.Sprintf("count %d: want 1 or more", q.Count)},
		refusal{q.Size > MaxSize, fmt.Sprintf("size %d: a transfer has at most %d bytes", q.Size, uint64(MaxSize))},
		refusal{q.Offset > MaxOffset, fmt.Sprintf("offset %d: want at most %d", q.Offset, MaxOffset)},
		refusal{q.Folios && (!q.Src.whole() || !q.Dst.whole()), fmt.Sprintf("folios: buffers in state %s: want %s or %s", []State{q.Src, q.Dst}, Absent, Present)},
		refusal{q.From < AnyNode || q.To < AnyNode, "nodes have ids from 0 on"},
	)
}

// Parallel describes one of several transfers that run at once.
type Parallel struct {
	Size   uint64
	Urgent bool
}

// MaxParallel is the largest number of transfers that a process has in flight.
const MaxParallel = device.WriteChannels

// Names of the classes of transfers.
const (
	ClassNormal = "normal" // the firmware chooses by the size
	ClassUrgent = "urgent" // the high class
)

// Completion is the result of one of several transfers that ran at once.
type Completion struct {
	Transfer  int     `json:"transfer"` // in the order of starting, from 0
	Size      uint64  `json:"size_bytes"`
	Class     string  `json:"class"` // the requested one: normal or urgent
	Done      bool    `json:"done"`
	LatencyUS float64 `json:"latency_us"` // from its start to its end
	Error     string  `json:"error,omitempty"`
}

// Run makes the transfers. The result is always filled in. The error, which the result
// repeats, means that the run could not start or was interrupted. Failed transfers and
// wrong bytes are reported in the result only.
func Run(ctx context.Context, d Daemon, q Request) (Result, error) {
	q.Waiting = q.Waiting.resolve(q.Size)
	r, _, err := runSet(ctx, d, q, []Parallel{{q.Size, q.Urgent}})
	return r, err
}

// RunParallel is like Run, but starts all transfers of set at once, q.Count times. It polls,
// and also returns the order of completion of the last round. It ignores q.Size and q.Urgent.
func RunParallel(ctx context.Context, d Daemon, q Request, set []Parallel) (Result, []Completion, error) {
	q.Waiting = Poll
	return runSet(ctx, d, q, set)
}

func runSet(ctx context.Context, d Daemon, q Request, set []Parallel) (Result, []Completion, error) {
	r := newResult(&q)
	list, err := run(ctx, d, q, set, &r)
	return r, list, r.broken(ctx, err)
}

// broken records in the result the error that ended a run early.
func (r *Result) broken(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		// After an interruption, how the processes ended does not matter.
		err = fmt.Errorf("interrupted: %w", context.Cause(ctx))
	case errors.Is(err, control.ErrEnded):
		r.Error = nil // that of a transfer is a consequence
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
			// The errors of the processes are consequences of pfd's end.
			_ = s.Close()
			return list, ended
		}
	}
	return list, errors.Join(err, s.Close())
}

// ended returns an error that matches control.ErrEnded if the run failed because pfd ended.
// The error names the last of count transfers. A transfer that had not arrived by then has
// the status of a node that is gone.
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

// ended reports whether the pfd that ran as process pid has ended.
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
	if r.Failed > 0 && err == nil && len(set) == 1 { // the log does not assign faults to transfers
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
		// The counters are still useful, but reading them may fail after this error.
		return list, err
	}
	return list, countErr
}

// explain replaces the possible causes in the error of a run by the reason from the fault
// log, if the log has one. It is best effort.
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
	var latencies []int64
	wrong := false
	defer func() {
		r.Verified = r.Transfers > 0 && !wrong && err == nil // an error ended the checks
		r.ThroughputGbps = throughput(r.Bytes, latencies)
		r.Latency = summarize(latencies)
	}()
	for n := range q.Count {
		all, err := s.do(&q, set, q.Offset)
		if err != nil {
			r.fail(err.Error())
			return list, err
		}
		list = nil
		for i, out := range all {
			r.Transfers++
			r.pin(out.Pinned)
			r.folio(s.folio)
			c := Completion{Transfer: i, Size: set[i].Size, Class: ClassNormal, Done: out.Done, LatencyUS: float64(out.LatencyNS) / 1e3, Error: out.Error}
			if set[i].Urgent {
				c.Class = ClassUrgent
			}
			list = append(list, c)
			if out.Done {
				r.Bytes += set[i].Size
				latencies = append(latencies, out.LatencyNS)
			} else {
				r.Failed++
				r.fail(out.Error)
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

// folio records how the buffers came in.
func (r *Result) folio(f Folio) {
	r.Folio = f
	if r.FolioBytes = f.Bytes(); f.Single != "" {
		r.SinglePages = &f.Single
	}
}

// pin records how many bytes were pinned at a transfer.
func (r *Result) pin(n maybe.Number) {
	if !(r.PinnedBytes >= n) { // also if it is unknown so far
		r.PinnedBytes = n
	}
}

// count reads the counters of the two domains and those of a node into a result. Under
// method touch the processes count the pages that they bring in themselves.
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
	if c.Retransmits.Known() { // otherwise pfd does not show all domains either
		c.CountersOthers = maybe.Number(others)
	}
	return c, nil
}
