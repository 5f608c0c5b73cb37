package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/groupname"
	"github.com/exanet/pfd/internal/workload"
)

// processCommand is the hidden command that runs a test process.
const processCommand = "test-process"

// testProcess returns the command line of a test process: this program again.
func testProcess() []string { return []string{"/proc/self/exe", processCommand} }

func (a *app) processCommand() *cobra.Command {
	return &cobra.Command{
		Use:    processCommand,
		Short:  "Run a test process, which carries out orders from standard input",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return workload.Process(cmd.Context(), a.in, a.out)
		},
	}
}

// writeFlags are the flags of write and read: the request, and flags that check parses into it.
type writeFlags struct {
	workload.Request
	size, offset, class string
	src, dst, waiting   string
	parallel            int
	set                 []workload.Parallel // the transfers that run at once
}

const readLong = `read is like write in the other direction: the initiator on node --from reads
the buffer of the target on node --to into its own buffer. --src is the state of
the target's buffer, --dst that of the initiator's. Flags and JSON are those of
write.

`

// transferCommand returns the command write or read.
func (a *app) transferCommand(read bool) *cobra.Command {
	w := writeFlags{Request: workload.Request{Read: read}}
	name, verb, long := "write", "writes between", ""
	if read {
		name, verb, long = "read", "reads between", readLong
	}
	c := &cobra.Command{
		Use:   name,
		Short: "Make RDMA " + verb + " two test processes and check every byte",
		Long: long + `write starts two test processes, an initiator on node --from and a target on
node --to, and makes --count transfers between them. It makes both buffers anew
before each transfer, in the requested states, and checks every byte of them and
of the guards around them after it.

States of a buffer: absent (never touched), present, cow (present, shared with
a forked child), readonly, unmapped, alternate (every second page present),
pinned (present and locked), swapped (paged out to swap; exit code 4 if the
machine has no swap).
Sizes may have a unit: B, KiB, MiB, GiB, kB, MB, GB; without one they are bytes.

The exit code is 1 if a transfer failed or a byte was wrong. With -o json the
result is always printed, also after a failure (docs/exanetctl.md).`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.write(cmd.Context(), w) },
	}
	f := c.Flags()
	a.endFlags(c, &w.Options, "node of the initiator", "node of the target")
	f.StringVar(&w.size, "size", "4KiB", "bytes of a transfer; with --parallel a list with commas, used in turn")
	f.StringVar(&w.class, "class", workload.ClassNormal, "normal (by the size) or urgent (the high class); with --parallel a list, used in turn")
	f.IntVar(&w.parallel, "parallel", 1, "number of transfers at once, 1 to 32; above 1 the order of completion is printed")
	f.IntVar(&w.Count, "count", 1, "number of transfers")
	f.StringVar(&w.offset, "offset", "0", "offset of both buffers from a 16 KiB boundary, in bytes")
	f.StringVar(&w.src, "src", string(workload.Present), "state of the source buffer")
	f.StringVar(&w.dst, "dst", string(workload.Present), "state of the destination buffer")
	f.StringVar(&w.waiting, "waiting", string(workload.Auto), "how the initiator waits: poll, wait (sleep), or auto (poll up to 16 KiB)")
	f.BoolVar(&w.Folios, "folios", false, foliosUsage)
	f.BoolVar(&w.Warm, "warm", false, "wake pfd by a small write before each transfer, which is not counted")
	f.DurationVar(&w.Timeout, "timeout", workload.DefaultTimeout, "time-out of one transfer")
	f.Uint64Var(&w.Seed, "seed", 1, "seed of the patterns")
	f.StringVar(&w.ToSocket, "to-socket", "", "control socket of the target's pfd if it has its own; --to is then one of its nodes, by default the first")
	values(c, "class", workload.ClassNormal, workload.ClassUrgent)
	values(c, "waiting", string(workload.Auto), string(workload.Poll), string(workload.Wait))
	for _, flag := range []string{"src", "dst"} {
		values(c, flag, workload.States()...)
	}
	return c
}

// endFlags adds the flags for attaching both ends of a transfer.
func (a *app) endFlags(c *cobra.Command, o *workload.Options, from, to string) {
	a.nodeFlags(c, o, from, to)
	f := c.Flags()
	f.StringVar(&o.Method, "method", "gup", "how absent pages are brought in: gup, touch, uffd or populate")
	f.StringVar(&o.Policy, "policy", "p1", "how many pages a fault brings in: p1 (one, PIO), p4 (to the end of 16 KiB, PI4), pa (all that remain, PIA), adaptive (by the pattern of the faults)")
	values(c, "method", pagein.GUP.String(), pagein.Touch.String(), pagein.UFFD.String(), pagein.Populate.String())
	values(c, "policy", pagein.PIO.String(), pagein.PI4.String(), pagein.PIA.String(), pagein.Adaptive.String())
}

// nodeFlags adds the flags that name the nodes of both ends and their group.
func (a *app) nodeFlags(c *cobra.Command, o *workload.Options, from, to string) {
	f := c.Flags()
	nodeFlag(f, &o.From, "from", "the first", from)
	nodeFlag(f, &o.To, "to", "the second", to)
	f.StringVar(&o.Group, "group", "", "group that both ends attach in (default a group of their own)")
	completeFlag(c, "from", a.nodeWords())
	completeFlag(c, "to", a.nodeWords())
}

// nodeFlag adds a flag for a node, by its id.
func nodeFlag(f *pflag.FlagSet, node *int, name, otherwise, usage string) {
	f.IntVar(node, name, workload.AnyNode, usage)
	f.Lookup(name).DefValue = otherwise
}

// check completes the request from the other flags.
func (w *writeFlags) check() error {
	_, methodErr := pagein.ParseMethod(w.Method)
	_, policyErr := pagein.ParsePolicy(w.Policy)
	var errs [8]error
	w.set, errs[0] = w.transfers()
	w.Offset, errs[1] = config.ParseSize(w.offset)
	w.Src, errs[2] = workload.ParseState(w.src)
	w.Dst, errs[3] = workload.ParseState(w.dst)
	w.Waiting, errs[4] = workload.ParseWaiting(w.waiting)
	if slices.ContainsFunc(w.set, func(p workload.Parallel) bool { return p.Size == 0 }) {
		errs[5] = errors.New("--size 0: a transfer has 1 byte or more")
	}
	if w.Timeout <= 0 {
		errs[6] = fmt.Errorf("--timeout %v: want more than 0", w.Timeout)
	}
	if w.Group != "" {
		errs[7] = groupname.Check(w.Group)
	}
	if len(w.set) > 0 {
		w.Size, w.Urgent = w.set[0].Size, w.set[0].Urgent
	}
	if err := errors.Join(append(errs[:], methodErr, policyErr, w.Check())...); err != nil {
		return usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

func (a *app) write(ctx context.Context, w writeFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	if err := w.check(); err != nil {
		return err
	}
	q := w.Request
	q.Socket, q.Trust, q.Command = c.Socket(), a.trusted(), testProcess()
	var d workload.Daemon = c
	if w.ToSocket != "" {
		other, err := control.New(w.ToSocket)
		if err != nil {
			return err
		}
		if err := q.SetNodes(ctx, c, other); err != nil {
			return err
		}
		if d, err = workload.Pair(ctx, c, other); err != nil {
			return err
		}
	}
	if q.SetNodes(ctx, d, nil) != nil {
		q.From, q.To = 0, 1 // Run fails as this did, and reports it as a result
	}
	bar := &progress{w: a.err, total: q.Count}
	if !a.wantJSON() && terminal(a.err) {
		q.Progress = bar.show
	}
	var r workload.Result
	var order []workload.Completion
	if w.parallel > 1 {
		r, order, err = workload.RunParallel(ctx, d, q, w.set)
	} else {
		r, err = workload.Run(ctx, d, q)
	}
	bar.clear() // the result replaces it
	if a.wantJSON() {
		if e := a.printJSON(transferResult{r, order}); e != nil {
			return e
		}
	} else if len(order) > 0 {
		if e := a.printOrder(r, order); e != nil {
			return e
		}
	} else if r.Transfers > 0 {
		if e := a.printResult(q, r); e != nil {
			return e
		}
	}
	switch {
	case err != nil:
		return err
	case !r.OK():
		text := "a byte is wrong"
		if r.Error != nil {
			text = *r.Error
		}
		return fmt.Errorf("%d of %d transfers failed: %s", r.Failed, r.Transfers, text)
	}
	return nil
}

func (a *app) printResult(q workload.Request, r workload.Result) error {
	name := "WRITE"
	if q.Read {
		name = "READ"
		q.From, q.To = q.To, q.From // the bytes come from the target
	}
	t := a.table(name, fmt.Sprintf("%s from node %d (%s) to node %d (%s), %s, %s", bytesText(q.Size), q.From, q.Src, q.To, q.Dst, q.Method, q.Policy))
	verified := "every byte is right"
	switch {
	case !r.Verified:
		verified = "NO: see the error"
	case r.Bytes == 0:
		verified = "nothing arrived, and all other bytes are unchanged"
	}
	t.add("transfers", fmt.Sprintf("%d, %d failed", r.Transfers, r.Failed))
	t.add("arrived", bytesCell(r.Bytes))
	t.add("verified", verified)
	t.add("faults", fmt.Sprintf("%s, %s pages paged in", r.Faults, r.PagesPagedIn))
	t.add("retransmissions", resent(&r))
	t.add("pinned", pinnedCell(r.PinnedBytes))
	if q.Folios {
		t.add("folios", r.Folio)
	}
	if r.Bytes > 0 {
		t.add("latency", latencyText(q, &r))
		if l := r.Latency; l.P99.Known() {
			t.add("percentiles", fmt.Sprintf("p90 %s us, p99 %s us", l.P90.Text(1), l.P99.Text(1)))
		}
		t.add("throughput", r.ThroughputGbps.Text(3)+" Gb/s")
		if r.Timeouts+r.Guards > 0 {
			t.add("distorted", "the latencies include time-outs, because of a busy machine, a slow process or lost frames (see `exanetctl counter`)")
		}
	}
	return t.flush()
}

// resent describes a node's retransmissions.
func resent(r *workload.Result) string {
	if !r.Retransmits.Known() {
		return "- (only root and the user of pfd see a node's counters)"
	}
	text := fmt.Sprintf("node %d: %s, %s requested by RAPF, %s time-outs, %s guard time-outs", r.CountersNode, r.Retransmits, r.RAPF, r.Timeouts, r.Guards)
	if r.CountersOthers > 0 {
		text += fmt.Sprintf("; these include those of %s", plural(int(r.CountersOthers), "other domain"))
	}
	return text
}

// wakeUpCounts is the latency, in us, above which the time to wake pfd, some 100 us, is not
// mentioned. Defined by this project.
const wakeUpCounts = 1000

func latencyText(q workload.Request, r *workload.Result) string {
	l := r.Latency
	text := l.P50.Text(1) + " us"
	if r.Transfers-r.Failed > 1 {
		text += fmt.Sprintf(" median, %s mean, %s to %s", l.Mean.Text(1), l.Min.Text(1), l.Max.Text(1))
	}
	if r.Waiting == workload.Poll {
		text += ", polling"
	} else {
		text += ", sleeping"
	}
	if !q.Warm && l.P50 < wakeUpCounts {
		text += "; pfd slept before each transfer, --warm excludes its wake-up"
	}
	return text
}

// progress draws a bar on a terminal.
type progress struct {
	w     io.Writer
	total int
	last  time.Time
	drawn bool
}

// progressStep is the time between two pictures of a bar.
const progressStep = 100 * time.Millisecond

func (p *progress) show(done int) {
	if now := time.Now(); now.Sub(p.last) >= progressStep {
		p.last = now
		p.draw(done)
	}
}

func (p *progress) draw(done int) {
	const width = 40
	full := width * done / p.total
	// An error of standard error is ignored.
	_, _ = fmt.Fprintf(p.w, "\r[%s%s] %d/%d", strings.Repeat("#", full), strings.Repeat(".", width-full), done, p.total)
	p.drawn = true
}

func (p *progress) clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K") // ECMA-48, EL: erase to the end of the line
	}
}

// transferResult is the JSON of write and read: the result, and with --parallel the order of
// completion.
type transferResult struct {
	workload.Result
	Completions []workload.Completion `json:"completions,omitempty"`
}

// transfers returns the transfers that run at once. It cycles through the lists of sizes and
// classes.
func (w *writeFlags) transfers() ([]workload.Parallel, error) {
	if w.parallel < 1 || w.parallel > workload.MaxParallel {
		return nil, fmt.Errorf("--parallel %d: want 1 to %d", w.parallel, workload.MaxParallel)
	}
	sizes, classes := strings.Split(w.size, ","), strings.Split(w.class, ",")
	if w.parallel == 1 && len(sizes)+len(classes) > 2 {
		return nil, errors.New("a list of sizes or classes needs --parallel")
	}
	set := make([]workload.Parallel, w.parallel)
	for i := range set {
		var err error
		if set[i].Size, err = config.ParseSize(sizes[i%len(sizes)]); err != nil {
			return nil, err
		}
		switch class := classes[i%len(classes)]; class {
		case workload.ClassNormal:
		case workload.ClassUrgent:
			set[i].Urgent = true
			if w.Read {
				return nil, errors.New("--class urgent: a read request has no class; its size determines it")
			}
		default:
			return nil, fmt.Errorf("--class %q: want %s or %s", class, workload.ClassNormal, workload.ClassUrgent)
		}
	}
	return set, nil
}

// printOrder prints transfers that ran at once in the order of completion.
func (a *app) printOrder(r workload.Result, order []workload.Completion) error {
	t := a.table("PLACE", "TRANSFER", "SIZE", "CLASS", "LATENCY_US", "OUTCOME")
	for i, c := range order {
		outcome := "done"
		if !c.Done {
			outcome = c.Error
		}
		t.add(i+1, c.Transfer, bytesCell(c.Size), c.Class, micros(int64(c.LatencyUS*1e3)), outcome)
	}
	if err := t.flush(); err != nil {
		return err
	}
	verified := "every byte is right"
	if !r.Verified {
		verified = "NOT verified: see the error"
	}
	return a.remark("%d transfers, %d failed, %d bytes arrived, %s", r.Transfers, r.Failed, r.Bytes, verified)
}
