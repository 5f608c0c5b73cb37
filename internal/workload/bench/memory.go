package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/workload"
)

// Parameters of the memory suite. Values are defined by this project.
const (
	memoryLimit = 48 << 20        // of the target's cgroup, bytes
	memoryPages = 96 << 20 / 4096 // of the target's buffers
	memorySwap  = 256 << 20       // bytes
	memoryStep  = 20 * time.Millisecond
	memoryFresh = 2 * time.Millisecond
)

// memory measures puts of 4 KiB into buffers twice as large as the target's memory limit, by
// strategy: resident and pinned bytes over time.
func (r *run) memory() (err error) {
	t := r.table("memory", fmt.Sprintf("Memory of a target that may have %d MiB and whose buffers are %d MiB, by part of its time", memoryLimit>>20, memoryPages>>8), "MiB", "part of the time", "")
	s := r.table("memory-puts", "Its puts of 4 KiB", "us", "strategy", "")
	group, remove, err := memoryGroup()
	if err != nil {
		return err
	}
	stop := fresh(group)
	defer func() {
		stop()
		err = errors.Join(err, remove())
	}()
	measured, why := false, []error{workload.ErrSkipped}
	for _, device := range []struct {
		name string
		make func() (off func() error, err error)
	}{{"zram", swapZram}, {"a file", swapFile}} {
		off, err := device.make()
		if workload.Skipped(err) != "" {
			why = append(why, err)
			s.note("swap to %s is not measured: %v.", device.name, err)
			continue
		}
		if err == nil && !measured {
			t.note("Swap is %s.", device.name)
			err = r.pressed(group, t, s)
			measured = err == nil
		}
		if err == nil {
			err = r.besideSwap(group, device.name)
		}
		if off != nil {
			err = errors.Join(err, off())
		}
		if err != nil {
			return err
		}
	}
	if !measured {
		return errors.Join(why...)
	}
	return nil
}

// fresh keeps the kernel's page counts of a cgroup fresh until stop is called: reading them
// updates them. Otherwise they may be 2 s old, and reclaim, which uses them, finds no page to
// evict (docs/benchmarks.md, "A cgroup's limit").
func fresh(group string) (stop func()) {
	return every(memoryFresh, func() bool {
		_, _ = os.ReadFile(filepath.Join(group, "memory.stat"))
		return true
	})
}

// every calls f, and again a time d after each return, until f returns false or stop is called.
func every(d time.Duration, f func() bool) (stop func()) {
	end := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for f() {
			select {
			case <-end:
				return
			case <-time.After(d):
			}
		}
	})
	return func() { close(end); wait.Wait() }
}

// confined is like open, but moves the target into the cgroup.
func (r *run) confined(d *pfd, group string) (*workload.Perf, error) {
	p := r.open(d, 0, 1, "gup", "p1")
	if p == nil {
		return nil, r.failed
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(p.Target())), 0); err != nil {
		return nil, fmt.Errorf("%w: %w", workload.ErrSkipped, err)
	}
	return p, nil
}

// besideSwap measures faults of a target whose memory is swapped out, and minor faults of
// another target at the same time and alone.
func (r *run) besideSwap(group, device string) error {
	t := r.report.Table("memory-swap")
	if t == nil {
		t = r.table("memory-swap", "Major faults, and minor faults of others beside them (gup, p1; sleeping)", "", "swap", "")
	}
	return r.with(2, func(d *pfd) error {
		p, err := r.confined(d, group)
		if err != nil {
			return err
		}
		other := r.open(d, 0, 1, "gup", "p1")
		if other == nil {
			return r.failed
		}
		q := workload.PerfRun{Size: smallSize, Dst: 1, Count: r.count(smallSize), Sleep: true}
		alone, err := other.Run(r.ctx, q)
		if err != nil {
			return err
		}
		before, err := r.counters(d, control.CounterMajor)
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		var put workload.StrategyResult
		go func() {
			var err error
			put, err = p.Puts(r.ctx, &workload.Strategies[0], workload.StrategyRun{Size: smallSize, Pages: memoryPages, Puts: 2 * memoryPages, Limit: 1})
			done <- err
		}()
		var beside []int64
		for over := false; !over; {
			got, e := other.Run(r.ctx, q)
			beside, err = append(beside, got.Latencies...), errors.Join(err, e)
			select {
			case e = <-done:
				over = true
				if rss, _, gone := resident(p.Target()); e != nil && (gone != nil || rss == 0) {
					t.note("%s: %v.", device, errKilled)
					_ = p.Close() // fails because its target was killed
					d.perfs = d.perfs[1:]
					e = nil
				}
				err = errors.Join(err, e)
			default:
				over = err != nil
			}
		}
		if err != nil {
			return err
		}
		after, err := r.counters(d, control.CounterMajor)
		t.cell(device, "major page-ins").Samples = []float64{float64(after[0] - before[0])}
		for name, list := range map[string][]int64{"a put": put.Latencies, "another's fault": beside, "the same alone": alone.Latencies} {
			if s := summarize(us(list)); s.N > 0 {
				t.cell(device, name+": p50, us").Samples = us(list)
				t.cell(device, name+": p99, us").Samples = []float64{s.P99}
			}
		}
		slices.Sort(t.Columns)
		return err
	})
}

// pressed measures the strategies in the cgroup.
func (r *run) pressed(group string, t, s *Table) error {
	for _, i := range []int{0, 1, 3} { // ours, pin everything, the pin-down cache
		g := &workload.Strategies[i]
		err := r.with(2, func(d *pfd) error {
			p, err := r.confined(d, group)
			if err != nil {
				return err
			}
			var at [][2]float64
			ctx, cancel := context.WithCancelCause(r.ctx)
			defer cancel(nil)
			stop := watch(p.Target(), &at, cancel)
			got, err := p.Puts(ctx, g, workload.StrategyRun{Size: smallSize, Pages: memoryPages, Puts: memoryPages, Limit: memoryLimit / 4 / 4096})
			stop()
			for i, v := range at {
				row := fmt.Sprintf("%d %%", 10*(1+10*i/len(at)))
				for j, what := range []string{"resident", "pinned"} {
					c := t.cell(row, g.Name+": "+what)
					c.Samples = append(c.Samples, v[j])
				}
			}
			// Puts may fail before watch has seen that the target was killed.
			rss, _, e := resident(p.Target())
			if errors.Is(context.Cause(ctx), errKilled) || err != nil && (e != nil || rss == 0) {
				t.note("%s: %v.", g.Name, errKilled)
				_ = p.Close() // fails because its target was killed
				d.perfs = nil
				return nil
			}
			c := s.cell(g.Name, "a put")
			c.Samples = us(got.Latencies)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// errKilled means that the OOM killer ended the target.
var errKilled = errors.New("the OOM killer ends the target: too little of its memory can be evicted")

// watch records a process's resident and pinned MiB until stop is called. It cancels with
// errKilled if the process ends first.
func watch(pid int, to *[][2]float64, cancel context.CancelCauseFunc) (stop func()) {
	return every(memoryStep, func() bool {
		rss, locked, err := resident(pid)
		if err == nil && rss == 0 { // an ended process has no memory
			cancel(errKilled)
			return false
		}
		if err == nil {
			*to = append(*to, [2]float64{float64(rss) / (1 << 20), float64(locked) / (1 << 20)})
		}
		return true
	})
}

// memoryGroup makes a memory cgroup, version 2 or 1, with memoryLimit.
func memoryGroup() (dir string, remove func() error, err error) {
	parent, file := "/sys/fs/cgroup", "memory.max"
	if text, err := os.ReadFile(parent + "/cgroup.subtree_control"); err != nil || !strings.Contains(string(text), "memory") {
		parent, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	dir = filepath.Join(parent, fmt.Sprintf("exanet-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("%w: a memory cgroup: %w", workload.ErrSkipped, err)
	}
	remove = func() error {
		for range 100 { // a process that has just ended may still be in it
			if err = os.Remove(dir); !errors.Is(err, unix.EBUSY) {
				return err
			}
			time.Sleep(memoryStep)
		}
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(memoryLimit)), 0); err != nil {
		return "", nil, errors.Join(fmt.Errorf("%w: a memory cgroup: %w", workload.ErrSkipped, err), remove())
	}
	return dir, remove, nil
}

// swapFile adds swap in a file. off removes it.
func swapFile() (off func() error, err error) {
	f, err := os.CreateTemp("", "exanet-swap-")
	if err != nil {
		return nil, err
	}
	name := f.Name()
	err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, memorySwap), f.Close())
	return swapTo(name, err, func() error { return os.Remove(name) })
}

// swapZram adds swap in compressed memory.
func swapZram() (off func() error, err error) {
	const control = "/sys/class/zram-control/"
	text, err := os.ReadFile(control + "hot_add") // reading adds a device
	if err != nil {
		return nil, fmt.Errorf("%w: this kernel has no zram: %w", workload.ErrSkipped, err)
	}
	id := strings.TrimSpace(string(text))
	dir := "/sys/block/zram" + id + "/"
	err = os.WriteFile(dir+"disksize", []byte(strconv.Itoa(memorySwap)), 0)
	return swapTo("/dev/zram"+id, err, func() error {
		return errors.Join(os.WriteFile(dir+"reset", []byte("1"), 0), os.WriteFile(control+"hot_remove", []byte(id), 0))
	})
}

// swapTo enables swap on the file or device name, unless err is set, in which case making it
// failed. off disables the swap and calls remove.
func swapTo(name string, err error, remove func() error) (off func() error, _ error) {
	tool := func(args ...string) error {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if err == nil {
		err = tool("mkswap", name)
	}
	if err == nil {
		err = tool("swapon", name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: swap: %w", workload.ErrSkipped, err), remove())
	}
	return func() error { return errors.Join(tool("swapoff", name), remove()) }, nil
}
