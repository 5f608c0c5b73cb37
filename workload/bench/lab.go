// Package bench measures pfd from outside, as its users meet it: pfds of its own and
// processes (workload.Perf) that check every byte of every transfer.
//
// What is compared takes turns, so that what disturbs the machine disturbs all of it,
// and a figure is a median. Only ratios within one run mean anything beyond the machine
// that they were measured on.
//
// docs/papers.md has the papers that comments cite by number.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/workload"
)

// Lab is what measurements are made with.
type Lab struct {
	PFD     string   // the program
	Program string   // exanetctl, which has commands for helpers
	Command []string // starts a test process (workload.Options)
	// Count is how many samples each case of up to 16 KiB gets, larger ones fewer.
	Count int
	// Memory are the kinds that are measured. None: both, in turns, where a fault and the
	// page-in methods are compared with present memory, and shared memory elsewhere.
	Memory []workload.Memory
	// Window is how long each number of channels or domains is kept busy, and a tenth of
	// how long an idle pfd is watched.
	Window time.Duration
	// BPFFS is a directory of a bpffs for the probe; "": tracing is not measured.
	// Untraced is a pfd without the probe point, "": there is none.
	BPFFS, Untraced string
	// Progress is told what begins; nil: nobody.
	Progress func(what string)
}

// Suite is one thing that is measured: tables of cases, and what measures them.
type Suite struct {
	Name  string
	About string
	run   func(*run) error
}

// Suites are all of them, in their order.
func Suites() []Suite {
	return []Suite{
		{"faults", "writes of 4 KiB and 1 MiB, present and absent, beside the bare calls; where a page is absent, by method and policy; time-outs", (*run).faults},
		{"isolated", "4 KiB a pause after the last transfer, beside the wake-up of a thread", (*run).isolated},
		{"methods", "each page-in method beside present memory, briefly", (*run).methods},
		{"latency", "writes and reads by size, to their end and to the notification", (*run).latency},
		{"frequency", "1 MiB by how likely a page is absent", (*run).frequency},
		{"overheads", "mmap, munmap, mlock, munlock and touch by size", (*run).overheads},
		{"breakdown", "the stages of a write of 4 KiB that faults, and pfd's time", (*run).breakdown},
		{"strategies", "what is done instead of pin-free RDMA: pinning, caches, copies", (*run).strategies},
		{"memory", "resident and pinned bytes where buffers exceed memory (a memory cgroup and swap: root)", (*run).memory},
		{"scale", "channels, domains, nodes and pfds at once; one fault beside 64 others; an idle pfd", (*run).scale},
		{"outstanding", "blocks of a transfer in flight", (*run).outstanding},
		{"firmware", "each optimization of the firmware switched off", (*run).firmware},
		{"device", "the device in a process of its own", (*run).device},
		{"peers", "what others' software does: UCX, libfabric, stress-ng's userfaultfd, libvfio-user", (*run).peers},
		{"tracing", "the eBPF probe attached", (*run).tracing},
		{"simulated", "the faults of a board with the papers' costs, in simulated time", (*run).simulated},
	}
}

// ReportVersion is the layout of a Report (ours; docs/exanetctl.md, JSON).
const ReportVersion = 3

// Report is what a run has measured.
type Report struct {
	Version     int           `json:"version"`
	Machine     Machine       `json:"machine"`
	Suites      []SuiteReport `json:"suites"`
	PinnedBytes int64         `json:"pinned_bytes"` // the most, where pinning is not what is measured
	Tables      []*Table      `json:"-"`            // a line for each cell (JSON)
}

// SuiteReport tells how a suite went.
type SuiteReport struct {
	Name      string  `json:"name"`
	About     string  `json:"about"`
	Seconds   float64 `json:"seconds"`
	Skipped   string  `json:"skipped,omitempty"`   // why this machine cannot do it
	Distorted string  `json:"distorted,omitempty"` // by what
	// Missing are programs that are not installed, each with how to get it, or that failed.
	Missing []string `json:"missing,omitempty"`
	Guards  uint64   `json:"guard_timeouts"` // blocks that a guard time-out sent again, where nothing went wrong
}

// ErrSuite says that there is no suite of a name.
var ErrSuite = errors.New("no such suite")

// Choose gives the suites of names; "all" is every one.
func Choose(names []string) ([]Suite, error) {
	all := Suites()
	if slices.Equal(names, []string{"all"}) {
		return all, nil
	}
	var list []Suite
	for _, n := range names {
		i := slices.IndexFunc(all, func(s Suite) bool { return s.Name == n })
		if i < 0 {
			names := []string{"all"}
			for _, s := range all {
				names = append(names, s.Name)
			}
			return nil, fmt.Errorf("%w %q: want %s", ErrSuite, n, strings.Join(names, ", "))
		}
		list = append(list, all[i])
	}
	return list, nil
}

// run is a run underway.
type run struct {
	*Lab
	ctx      context.Context
	report   *Report
	suite    string
	measured []workload.Memory // kinds of memory
	// missing becomes the suite's.
	missing []string
	guards  uint64 // of the suite so far
	failed  error  // of the first open that failed
}

// Run measures suites. The calling goroutine is locked to its thread: what is started ends with it.
func (l *Lab) Run(ctx context.Context, suites []Suite) (*Report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := &run{Lab: l, ctx: ctx, report: &Report{Version: ReportVersion, Machine: machine()}}
	for i, s := range suites {
		r.suite, r.missing, r.guards = s.Name, nil, 0
		r.usual(workload.Shared)
		r.says("%d of %d: %s: %s", i+1, len(suites), s.Name, s.About)
		start := time.Now()
		canary, err := newCanary(ctx)
		if err != nil {
			return r.report, err
		}
		done := SuiteReport{Name: s.Name, About: s.About}
		err = s.run(r)
		if done.Skipped = workload.Skipped(err); err != nil && done.Skipped == "" {
			return r.report, fmt.Errorf("%s: %w", s.Name, err)
		}
		if done.Distorted, err = canary.verdict(ctx); err != nil {
			return r.report, err
		}
		done.Seconds, done.Missing, done.Guards = time.Since(start).Seconds(), r.missing, r.guards
		r.report.Suites = append(r.report.Suites, done)
	}
	return r.report, nil
}

func (r *run) says(format string, args ...any) {
	if r.Progress != nil {
		r.Progress(fmt.Sprintf(format, args...))
	}
}

func (r *run) table(name, title, unit, rows, base string) *Table {
	t := &Table{Suite: r.suite, Name: name, Title: title, Unit: unit, RowName: rows, Base: base}
	r.report.Tables = append(r.report.Tables, t)
	return t
}

// usual has kinds of memory measured from here on, where others are not asked for.
func (r *run) usual(m ...workload.Memory) {
	if r.measured = r.Memory; len(r.measured) == 0 {
		r.measured = m
	}
}

// kinds gives the kinds of memory that are measured, of those that p has: one at least.
func (r *run) kinds(p *workload.Perf) (list []workload.Memory) {
	have := []workload.Memory{workload.Shared}
	if p != nil {
		have = p.Memories()
	}
	for _, m := range r.measured {
		if slices.Contains(have, m) {
			list = append(list, m)
		}
	}
	if list == nil {
		return have[:1]
	}
	return list
}

// count gives how many samples a case of a size gets.
func (r *run) count(size uint64) int {
	switch {
	case size <= 16<<10:
		return max(r.Count, 1)
	case size <= 1<<20:
		return max(r.Count/5, 1)
	}
	return max(r.Count/50, 1)
}

// pfd is a running one, with who measures at it.
type pfd struct {
	process *workload.DaemonProcess
	client  *control.Client
	pid     int
	perfs   []*workload.Perf
}

// with runs f with a pfd of its own.
func (r *run) with(nodes int, f func(*pfd) error, args ...string) error {
	return r.each(nodes, [][]string{args}, func(d []*pfd) error { return f(d[0]) })
}

// each runs f with a pfd for each list of arguments.
func (r *run) each(nodes int, args [][]string, f func([]*pfd) error) (err error) {
	var list []*pfd
	defer func() {
		for _, d := range list {
			// How often a guard time-out had to help is added up.
			n, e := r.counters(d, device.Guards.String()+"_total")
			r.guards += n[0]
			err = errors.Join(err, e, d.stop())
		}
	}()
	for _, a := range args {
		d, err := start(r.ctx, r.PFD, nodes, a...)
		if err != nil {
			return err
		}
		list = append(list, d)
	}
	err = f(list)
	err, r.failed = cmp.Or(r.failed, err), nil
	return err
}

// start starts a pfd. The calling goroutine is locked to its thread.
func start(ctx context.Context, program string, nodes int, args ...string) (*pfd, error) {
	p, err := workload.StartDaemon(ctx, program, nodes, args...)
	if err != nil {
		return nil, err
	}
	d := &pfd{process: p}
	if d.client, err = control.New(p.Socket()); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	s, err := d.client.Status(ctx)
	if err != nil {
		return nil, errors.Join(err, d.stop())
	}
	d.pid = s.PID
	return d, nil
}

func (d *pfd) closePerfs() (err error) {
	for _, p := range d.perfs {
		if p != nil {
			err = errors.Join(err, p.Close())
		}
	}
	d.perfs = nil
	return err
}

func (d *pfd) stop() error {
	err := d.closePerfs()
	if d.client != nil {
		d.client.Close()
	}
	return errors.Join(err, d.process.Stop())
}

// counters gives what a pfd has counted by each name, of all its nodes together.
func (r *run) counters(d *pfd, names ...string) ([]uint64, error) {
	n := make([]uint64, len(names))
	list, err := d.client.Counters(r.ctx, control.AllNodes)
	for _, c := range list {
		if i := slices.Index(names, c.Name); i >= 0 {
			n[i] += c.Value
		}
	}
	return n, err
}

// open starts a target on node to, and attaches to node from. Where that fails it returns nil,
// and what follows fails: takeTurns, and each at the latest.
func (r *run) open(d *pfd, from, to int, method, policy string) *workload.Perf {
	var p *workload.Perf
	if r.failed == nil {
		var err error
		if p, err = workload.OpenPerf(r.ctx, d.client, workload.Options{
			Socket: d.process.Socket(), From: from, To: to, Method: method, Policy: policy, Command: r.Command,
		}, ""); err != nil {
			p, r.failed = nil, fmt.Errorf("method %s: %w", method, err)
		}
	}
	d.perfs = append(d.perfs, p)
	return p
}

// turn is one case: do makes one round and adds its samples to cells.
type turn struct {
	count int
	do    func(add func(*Cell, ...float64)) error
	got   int
}

// takeTurns has each case measured until it has its samples, one round of each after the
// other. The first round does not count.
func (r *run) takeTurns(turns ...*turn) error {
	if r.failed != nil {
		return r.failed
	}
	for warm, left := true, len(turns); left > 0; warm = false {
		left = 0
		for _, t := range turns {
			if t.got >= t.count {
				continue
			}
			if err := r.ctx.Err(); err != nil {
				return err
			}
			most := 0
			err := t.do(func(c *Cell, v ...float64) {
				if most = max(most, len(v)); !warm {
					c.Samples = append(c.Samples, v...)
				}
			})
			if err != nil {
				return err
			}
			if !warm {
				t.got += max(most, 1)
			}
			left++
		}
	}
	return nil
}

// laps adds how long each of n calls took, but for the first ones: they meet cold caches.
func laps(add func(*Cell, ...float64), c *Cell, n, skip int, call func(i int) (time.Duration, error)) error {
	for i := range n {
		took, err := call(i)
		if err != nil {
			return err
		}
		if i >= skip {
			add(c, float64(took.Nanoseconds())/1e3)
		}
	}
	return nil
}

func us(ns []int64) []float64 {
	v := make([]float64, len(ns))
	for i := range ns {
		v[i] = float64(ns[i]) / 1e3
	}
	return v
}

// smallRow is how many small transfers follow one another.
const smallRow = 64

// rowOf is how many of a size do.
func rowOf(size uint64) int {
	if size <= 64<<10 {
		return smallRow
	}
	return 4
}

// transfers is the case of transfers that are measured as q says, a row in each kind of
// memory in turn; notified, where not nil, gets how long until the target knew.
func (r *run) transfers(p *workload.Perf, q workload.PerfRun, c, notified *Cell) *turn {
	if q.Parts == 0 && q.Size <= 64<<10 {
		q.Parts = smallRow
	}
	t := &turn{count: r.count(q.Size)}
	if q.Count > 0 {
		t.count = q.Count
	}
	q.Count, q.Notify = 1, notified != nil
	kinds := r.kinds(p)
	if q.Memory != "" {
		kinds = []workload.Memory{q.Memory}
	}
	t.do = func(add func(*Cell, ...float64)) error {
		for _, q.Memory = range kinds {
			got, err := p.Run(r.ctx, q)
			if err != nil {
				return err
			}
			if got.Pinned < 0 {
				return errors.New("VmLck and VmPin of a process could not be read")
			}
			r.report.PinnedBytes = max(r.report.PinnedBytes, got.Pinned)
			add(c.of(q.Memory), us(got.Latencies)...)
			if notified != nil {
				add(notified.of(q.Memory), us(got.Notified)...)
			}
		}
		return nil
	}
	return t
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// cost returns what transfers that f makes take of pfds, each: the time of their processors,
// us, and interrupts of their drivers.
func (r *run) cost(pfds []*pfd, f func() (transfers int, err error)) (us, interrupts float64, err error) {
	spent := func() (all time.Duration, err error) {
		for _, d := range pfds {
			t, e := used(d.pid)
			all, err = all+t, errors.Join(err, e)
		}
		return all, err
	}
	// The counters are asked for outside of what is measured.
	count := func() (all uint64, err error) {
		for _, d := range pfds {
			n, e := r.counters(d, control.CounterInterrupts)
			all, err = all+n[0], errors.Join(err, e)
		}
		return all, err
	}
	counted, err1 := count()
	before, err2 := spent()
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, err
	}
	n, err := f()
	if err != nil {
		return 0, 0, err
	}
	after, err1 := spent()
	now, err2 := count()
	n = max(n, 1)
	return float64((after - before).Nanoseconds()) / 1e3 / float64(n), float64(now-counted) / float64(n), errors.Join(err1, err2)
}

// costOf is cost of what p measures.
func (r *run) costOf(d *pfd, p *workload.Perf, q workload.PerfRun) (got workload.PerfResult, us, interrupts float64, err error) {
	us, interrupts, err = r.cost([]*pfd{d}, func() (n int, err error) {
		got, err = p.Run(r.ctx, q)
		return got.Transfers(), err
	})
	return got, us, interrupts, err
}

// used gives the processor time that a process has used. Its clock is that of
// clock_getcpuclockid(3): ~pid << 3 | CPUCLOCK_SCHED (linux/posix-timers.h).
func used(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// resident gives VmRSS and VmLck of a process, bytes.
func resident(pid int) (rss, locked int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		rss, err = procstatus.Bytes(b, "VmRSS")
	}
	if err == nil {
		locked, err = procstatus.Bytes(b, "VmLck")
	}
	if errors.Is(err, procstatus.ErrNone) {
		err = nil // it is ending, and has no memory
	}
	return rss, locked, err
}

// sizeText is a size as rows have it.
func sizeText(n uint64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
