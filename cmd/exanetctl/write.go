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

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/groupname"
	"github.com/exanet/pfd/pagein"
	"github.com/exanet/pfd/workload"
)

// processCommand is the hidden command that makes this program a test process.
const processCommand = "test-process"

// testProcess is how a test process is started: this program once more.
func testProcess() []string { return []string{"/proc/self/exe", processCommand} }

func (a *app) processCommand() *cobra.Command {
	return &cobra.Command{
		Use:    processCommand,
		Short:  "Be a test process: obey the orders on standard input",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return workload.Process(cmd.Context(), a.in, a.out)
		},
	}
}

// writeFlags are the flags of write as they are given.
type writeFlags struct {
	from, to, count         int
	size, offset            string
	src, dst                string
	toSocket, group         string
	method, policy, waiting string
	warm                    bool
	timeout                 time.Duration
	seed                    uint64
	read                    bool
	class                   string
	parallel                int
}

func (a *app) writeCommand() *cobra.Command { return a.transferCommand(false) }

// readCommand is write the other way round: the initiator on node --from reads
// the buffer of the target on node --to.
func (a *app) readCommand() *cobra.Command { return a.transferCommand(true) }

const readLong = `read is write the other way round: the initiator on node --from reads the
buffer of the target on node --to into its own. --src is the state of the
buffer that is read, the target's, --dst that of the initiator's. Flags and
JSON are those of write.

`

func (a *app) transferCommand(read bool) *cobra.Command {
	w := writeFlags{read: read}
	name, verb, long := "write", "writes between", ""
	if read {
		name, verb, long = "read", "reads between", readLong
	}
	c := &cobra.Command{
		Use:   name,
		Short: "Make RDMA " + verb + " two test processes and check every byte",
		Long: long + `write starts two test processes, an initiator on node --from and a target on
node --to, and makes --count transfers between them. Before each both buffers
are made anew, in the states asked for; after each every byte of both is
checked, and of the guards around them.

States of a buffer: absent (never touched), present, cow (present, shared with
a forked child), readonly, unmapped, alternate (every second page present),
pinned (present and locked), swapped (paged out to swap; exit code 4 where the
machine has none).
Sizes take a unit: B, KiB, MiB, GiB, kB, MB, GB; without one they are bytes.

The exit code is 1 when a transfer failed or a byte was wrong. With -o json the
result is printed in every case, also on failure (docs/exanetctl.md).`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.write(cmd.Context(), w) },
	}
	f := c.Flags()
	f.IntVar(&w.from, "from", 0, "node of the initiator")
	f.IntVar(&w.to, "to", 1, "node of the target")
	f.StringVar(&w.size, "size", "4KiB", "bytes of a transfer; with --parallel a list with commas, taken in turn")
	f.StringVar(&w.class, "class", workload.ClassNormal, "normal (by the size) or urgent (the high class); with --parallel a list, taken in turn")
	f.IntVar(&w.parallel, "parallel", 1, "how many transfers at once, 1 to 32; above 1 the order of completion is printed")
	f.IntVar(&w.count, "count", 1, "how many transfers")
	f.StringVar(&w.offset, "offset", "0", "bytes by which both buffers lie behind a 16 KiB boundary")
	f.StringVar(&w.src, "src", string(workload.Present), "state of the source buffer")
	f.StringVar(&w.dst, "dst", string(workload.Present), "state of the destination buffer")
	f.StringVar(&w.method, "method", "gup", "how absent pages are brought in: gup, touch, uffd or populate")
	f.StringVar(&w.policy, "policy", "p1", "how many pages a fault brings in: p1 (one, PIO), p4 (to the end of 16 KiB, PI4), pa (all that remain, PIA), adaptive (what the faults show)")
	f.StringVar(&w.waiting, "waiting", string(workload.Auto), "how the initiator waits: poll, wait (sleep), or auto (poll up to 16 KiB)")
	f.BoolVar(&w.warm, "warm", false, "wake pfd up by a small write before each transfer, which is not counted")
	f.DurationVar(&w.timeout, "timeout", workload.DefaultTimeout, "how long one transfer may take")
	f.Uint64Var(&w.seed, "seed", 1, "seed of the patterns")
	f.StringVar(&w.toSocket, "to-socket", "", "control socket of the target's pfd, where that is another than the initiator's; --to is then one of its nodes")
	f.StringVar(&w.group, "group", "", "group that both processes attach in (default one of their own)")
	values(c, "method", pagein.GUP.String(), pagein.Touch.String(), pagein.UFFD.String(), pagein.Populate.String())
	values(c, "policy", pagein.PIO.String(), pagein.PI4.String(), pagein.PIA.String(), pagein.Adaptive.String())
	values(c, "class", workload.ClassNormal, workload.ClassUrgent)
	values(c, "waiting", string(workload.Auto), string(workload.Poll), string(workload.Wait))
	completeFlag(c, "from", a.nodeWords())
	completeFlag(c, "to", a.nodeWords())
	for _, flag := range []string{"src", "dst"} {
		values(c, flag, workload.States()...)
	}
	return c
}

func (w writeFlags) request(socket string, trust []uint32) (workload.Request, error) {
	q := workload.Request{Count: w.count, Warm: w.warm, Timeout: w.timeout, Seed: w.seed}
	q.Options = workload.Options{Socket: socket, From: w.from, To: w.to, ToSocket: w.toSocket, Group: w.group, Method: w.method, Policy: w.policy, Trust: trust, Command: testProcess()}
	_, methodErr := pagein.ParseMethod(w.method)
	_, policyErr := pagein.ParsePolicy(w.policy)
	var errs [5]error
	set, setErr := w.set()
	errs[0] = setErr
	if len(set) > 0 {
		q.Size, q.Urgent = set[0].Size, set[0].Urgent
	}
	q.Offset, errs[1] = config.ParseSize(w.offset)
	q.Src, errs[2] = workload.ParseState(w.src)
	q.Dst, errs[3] = workload.ParseState(w.dst)
	q.Waiting, errs[4] = workload.ParseWaiting(w.waiting)
	if setErr == nil && slices.ContainsFunc(set, func(p workload.Parallel) bool { return p.Size == 0 }) {
		errs[4] = errors.Join(errs[4], errors.New("--size 0: a transfer has 1 byte or more"))
	}
	if w.timeout <= 0 {
		errs[4] = errors.Join(errs[4], fmt.Errorf("--timeout %v: want more than 0", w.timeout))
	}
	if w.group != "" {
		errs[4] = errors.Join(errs[4], groupname.Check(w.group))
	}
	q.Read = w.read
	if err := errors.Join(append(errs[:], methodErr, policyErr, q.Check())...); err != nil {
		return q, usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return q, nil
}

func (a *app) write(ctx context.Context, w writeFlags) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	q, err := w.request(c.Socket(), a.trusted())
	if err != nil {
		return err
	}
	var d workload.Daemon = c
	if w.toSocket != "" {
		other, err := control.New(w.toSocket)
		if err != nil {
			return err
		}
		nodes, err := c.Nodes(ctx, control.AllNodes)
		if err != nil {
			return err
		}
		if d, err = workload.Pair(ctx, c, other); err != nil {
			return err
		}
		q.To += len(nodes)
	}
	bar := &progress{w: a.err, total: q.Count}
	if !a.wantJSON() && terminal(a.err) {
		q.Progress = bar.show
	}
	var r workload.Result
	var order []workload.Completion
	if w.parallel > 1 {
		set, e := w.set()
		if e != nil {
			return e
		}
		r, order, err = workload.RunParallel(ctx, d, q, set)
	} else {
		r, err = workload.Run(ctx, d, q)
	}
	bar.clear() // the result comes on its line
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
		verified = "nothing arrived, and no byte changed that must not"
	}
	rows := []struct {
		name  string
		value any
	}{
		{"transfers", fmt.Sprintf("%d, %d failed", r.Transfers, r.Failed)},
		{"arrived", bytesCell(r.Bytes)},
		{"verified", verified},
		{"faults", fmt.Sprintf("%s, %s pages paged in", r.Faults, r.PagesPagedIn)},
		{"retransmissions", resent(&r)},
		{"pinned", pinnedCell(r.PinnedBytes)},
	}
	for _, row := range rows {
		t.add(row.name, row.value)
	}
	if r.Bytes > 0 {
		t.add("latency", latencyText(q, &r))
		if l := r.Latency; l.P99.Known() {
			t.add("percentiles", fmt.Sprintf("p90 %s us, p99 %s us", l.P90.Text(1), l.P99.Text(1)))
		}
		t.add("throughput", r.ThroughputGbps.Text(3)+" Gb/s")
		if r.Timeouts+r.Guards > 0 {
			t.add("distorted", "time-outs are part of these times: a busy machine, a slow process, or something lost (exanetctl counter)")
		}
	}
	return t.flush()
}

// resent says what a node has sent again.
func resent(r *workload.Result) string {
	if !r.Retransmits.Known() {
		return "- (only root and the user of pfd see a node's counters)"
	}
	text := fmt.Sprintf("node %d: %s, %s asked for by RAPF, %s time-outs, %s guard time-outs", r.CountersNode, r.Retransmits, r.RAPF, r.Timeouts, r.Guards)
	if r.CountersOthers > 0 {
		text += fmt.Sprintf("; those of %s are among them", plural(int(r.CountersOthers), "other domain"))
	}
	return text
}

// wakeUpCounts is the latency, us, from which on it is not worth a word that pfd had to wake
// up, which takes some 100 us (ours).
const wakeUpCounts = 1000

func latencyText(q workload.Request, r *workload.Result) string {
	l := r.Latency
	text := l.P50.Text(1) + " us"
	if r.Transfers-r.Failed > 1 {
		text += fmt.Sprintf(" median, %s mean, %s to %s", l.Mean.Text(1), l.Min.Text(1), l.Max.Text(1))
	}
	text += ", " + waitingText(r.Waiting)
	if !q.Warm && l.P50 < wakeUpCounts {
		text += "; pfd slept before each, --warm leaves its wake-up out"
	}
	return text
}

func waitingText(w workload.Waiting) string {
	if w == workload.Poll {
		return "polling"
	}
	return "sleeping"
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
	// What cannot be drawn is not worth an error.
	_, _ = fmt.Fprintf(p.w, "\r[%s%s] %d/%d", strings.Repeat("#", full), strings.Repeat(".", width-full), done, p.total)
	p.drawn = true
}

func (p *progress) clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K") // ECMA-48, EL: erase to the end of the line
	}
}
