// Package bench measures pfd from outside, as its users see it. It starts pfds and
// processes (workload.Perf) that check every byte of every transfer.
//
// The cases of a comparison take turns, so that a disturbance of the machine affects all of
// them. A figure is a median. Only ratios within one run mean anything on other machines.
//
// Comments cite papers by their numbers in docs/papers.md.
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

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/procstatus"
	"github.com/exanet/pfd/internal/workload"
)

// Lab is the equipment for measurements.
type Lab struct {
	PFD     string   // program file of pfd
	Program string   // program file of exanetctl, which has commands for helpers
	Command []string // starts a test process (workload.Options)
	// Count is the number of samples of each case of up to 16 KiB. Larger ones get fewer.
	Count int
	// Memory lists the kinds of memory to measure. If it is empty, suites that compare faults
	// or page-in methods with present memory measure both kinds in turns, and all others
	// measure shared memory.
	Memory []workload.Memory
	// Window is the time for which each number of channels is kept busy. Each number of
	// domains is kept busy for a tenth of it, and an idle pfd is watched for ten times.
	Window time.Duration
	// BPFFS is a directory of a bpffs for the probe; "" means that tracing is not measured.
	// Untraced is a pfd without the probe point, or "".
	BPFFS, Untraced string
	// Progress, if not nil, is called with a description of each step.
	Progress func(what string)
}

// Suite is a set of measurements that fills one or more tables.
type Suite struct {
	Name  string
	About string
	run   func(*run) error
}

// Suites returns all suites in the order in which they run.
func Suites() []Suite {
	return []Suite{
		{"faults", "writes of 4 KiB to 1 MiB, present and absent, beside the bare system calls; faults by method and policy; time-outs", (*run).faults},
		{"folios", "absent memory that comes in by folios of several pages, where the machine allows them", (*run).folios},
		{"isolated", "4 KiB with a pause before each transfer, beside the wake-up of a thread", (*run).isolated},
		{"methods", "each page-in method beside present memory (a short run)", (*run).methods},
		{"latency", "writes and reads by size, until their end and until the notification", (*run).latency},
		{"frequency", "1 MiB by the probability that a page is absent", (*run).frequency},
		{"overheads", "mmap, munmap, mlock, munlock and touch by size", (*run).overheads},
		{"breakdown", "the stages of a write of 4 KiB that faults, and pfd's processor time", (*run).breakdown},
		{"strategies", "alternatives to pin-free RDMA: pinning, caches, copies", (*run).strategies},
		{"memory", "resident and pinned bytes if buffers exceed memory (memory cgroup and swap; needs root)", (*run).memory},
		{"scale", "many channels, domains, nodes and pfds at once; one fault beside 64 others; an idle pfd", (*run).scale},
		{"outstanding", "the number of blocks of a transfer in flight", (*run).outstanding},
		{"firmware", "each optimization of the firmware switched off", (*run).firmware},
		{"device", "the device in a process of its own", (*run).device},
		{"peers", "other projects' software: UCX, libfabric, stress-ng's userfaultfd, libvfio-user", (*run).peers},
		{"hosts", "writes to another machine, a network namespace, beside those in one pfd and a bare TLS connection (needs root)", (*run).hosts},
		{"gsas", "operations on words of the global address space, in pfd and over vfio-user, beside the processor's own, Redis and MPI_Fetch_and_op", (*run).gsas},
		{"dht", "the hash table beside Redis and memcached", (*run).dht},
		{"tracing", "the cost of the eBPF probe", (*run).tracing},
		{"simulated", "faults of a board with the papers' costs, in simulated time", (*run).simulated},
	}
}

// ReportVersion is the version of Report's JSON (docs/exanetctl.md). Defined by this project.
const ReportVersion = 3

// Report is the result of a run.
type Report struct {
	Version     int           `json:"version"`
	Machine     Machine       `json:"machine"`
	Suites      []SuiteReport `json:"suites"`
	PinnedBytes int64         `json:"pinned_bytes"` // the largest sum, except in suites that pin
	Tables      []*Table      `json:"-"`            // JSON writes a line for each cell
}

// SuiteReport is the result of a suite.
type SuiteReport struct {
	Name      string  `json:"name"`
	About     string  `json:"about"`
	Seconds   float64 `json:"seconds"`
	Skipped   string  `json:"skipped,omitempty"`   // the reason why this machine cannot run it
	Distorted string  `json:"distorted,omitempty"` // the causes of distortion
	// Missing lists programs that failed, or that are not installed and how to install them.
	Missing []string `json:"missing,omitempty"`
	Guards  uint64   `json:"guard_timeouts"` // blocks retransmitted after a guard time-out; normally 0
}

// ErrSuite means that there is no suite with a name.
var ErrSuite = errors.New("no such suite")

// Choose returns the suites with names; "all" means every suite.
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

// run is the state of a run.
type run struct {
	*Lab
	ctx      context.Context
	report   *Report
	suite    string
	measured []workload.Memory // kinds of memory that the suite measures
	missing  []string          // of the suite so far
	guards   uint64            // of the suite so far
	failed   error             // of the first open that failed
}

// Run measures suites. It locks the calling goroutine to its thread, because the processes
// that it starts end with that thread.
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

// usual selects the kinds of memory to measure from here on, unless Lab.Memory is set.
func (r *run) usual(m ...workload.Memory) {
	if r.measured = r.Memory; len(r.measured) == 0 {
		r.measured = m
	}
}

// kinds returns the kinds of memory of p that are measured, at least one.
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

// count returns the number of samples of a case with a transfer size.
func (r *run) count(size uint64) int {
	switch {
	case size <= 16<<10:
		return max(r.Count, 1)
	case size <= 1<<20:
		return max(r.Count/5, 1)
	}
	return max(r.Count/50, 1)
}

// pfd is a running pfd with its attached measuring processes.
type pfd struct {
	process *workload.DaemonProcess
	client  *control.Client
	pid     int
	perfs   []*workload.Perf
}

// with starts a pfd, calls f and stops the pfd.
func (r *run) with(nodes int, f func(*pfd) error, args ...string) error {
	return r.each(nodes, [][]string{args}, func(d []*pfd) error { return f(d[0]) })
}

// each is like with, but starts a pfd for each list of arguments.
func (r *run) each(nodes int, args [][]string, f func([]*pfd) error) (err error) {
	var list []*pfd
	defer func() {
		for _, d := range list {
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

// start starts a pfd. The calling goroutine must be locked to its thread.
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

// counters returns the values of a pfd's counters with names, summed over its nodes.
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

// open starts a target on node to and attaches to node from. On failure it returns nil and
// records the error, which takeTurns and each return.
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

// turn is one case of a comparison: do runs one round and adds its samples to cells.
type turn struct {
	count int
	do    func(add func(*Cell, ...float64)) error
	got   int
}

// takeTurns runs one round of each case after the other until each case has count samples. The
// first round is a warm-up without samples.
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

// laps makes n calls and adds their times, except the first skip ones, whose caches are cold.
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

// smallRow is the number of small transfers in a row.
const smallRow = 64

// rowOf returns the number of transfers of a size in a row.
func rowOf(size uint64) int {
	if size <= 64<<10 {
		return smallRow
	}
	return 4
}

// transfers returns the case that measures transfers as q says, a row in each kind of memory
// in turn. notified, if not nil, receives the times until the target saw the notification.
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
			got, err := r.row(p, q)
			if err != nil {
				return err
			}
			add(c.of(q.Memory), us(got.Latencies)...)
			if notified != nil {
				add(notified.of(q.Memory), us(got.Notified)...)
			}
		}
		return nil
	}
	return t
}

// row makes transfers as q says and records how much was pinned.
func (r *run) row(p *workload.Perf, q workload.PerfRun) (workload.PerfResult, error) {
	got, err := p.Run(r.ctx, q)
	if err == nil && got.Pinned < 0 {
		err = errors.New("VmLck and VmPin of a process could not be read")
	}
	r.report.PinnedBytes = max(r.report.PinnedBytes, got.Pinned)
	return got, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// cost returns the processor time of pfds, in us, and the interrupts of their drivers for each
// of the transfers that f makes.
func (r *run) cost(pfds []*pfd, f func() (transfers int, err error)) (us, interrupts float64, err error) {
	spent := func() (all time.Duration, err error) {
		for _, d := range pfds {
			t, e := used(d.pid)
			all, err = all+t, errors.Join(err, e)
		}
		return all, err
	}
	// The counters are read before and after the measured time.
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

// costOf returns the result of a measurement of p and its cost.
func (r *run) costOf(d *pfd, p *workload.Perf, q workload.PerfRun) (got workload.PerfResult, us, interrupts float64, err error) {
	us, interrupts, err = r.cost([]*pfd{d}, func() (n int, err error) {
		got, err = p.Run(r.ctx, q)
		return got.Transfers(), err
	})
	return got, us, interrupts, err
}

// used returns the processor time that a process has used. The clock is that of
// clock_getcpuclockid(3): ~pid << 3 | CPUCLOCK_SCHED (linux/posix-timers.h).
func used(pid int) (time.Duration, error) {
	t, err := clockTime(int32(^pid<<3 | 2))
	if err != nil {
		err = fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return t, err
}

func clockTime(clock int32) (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(clock, &ts)
	return time.Duration(ts.Nano()), err
}

// resident returns VmRSS and VmLck of a process, in bytes.
func resident(pid int) (rss, locked int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		rss, err = procstatus.Bytes(b, "VmRSS")
	}
	if err == nil {
		locked, err = procstatus.Bytes(b, "VmLck")
	}
	if errors.Is(err, procstatus.ErrNone) {
		err = nil // it is ending and has no memory
	}
	return rss, locked, err
}

// sizeText formats a size as the name of a row.
func sizeText(n uint64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
