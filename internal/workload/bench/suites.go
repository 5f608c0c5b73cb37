package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/trace/probe"
)

// Sizes of the transfers in most tables. Values are defined by this project.
const (
	smallSize = 4 << 10
	largeSize = 1 << 20
)

var (
	methodNames = []string{"touch", "gup", "uffd", "populate"}
	policyNames = []string{"p1", "p4", "pa"}
)

// faults measures the cost of a fault.
func (r *run) faults() error {
	return errors.Join(r.firstLight(), r.where(), r.timeouts(), r.prefetch())
}

// Rows of page-ins without pfd and without a device: of any memory by process_vm_writev, which
// calls get_user_pages, and of shared memory by its userfaultfd.
const (
	barePageIn = "bare page-in by process_vm_writev"
	bareFill   = "bare fill by userfaultfd"
)

// firstLight measures 4 KiB to 1 MiB, present and absent, beside the bare calls.
func (r *run) firstLight() error {
	r.usual(workload.Memories...)
	defer r.usual(workload.Shared)
	t := r.table("first", "Faulting against present memory (gup)", "us", "destination", "present")
	return r.with(2, func(d *pfd) error {
		var b bare
		defer b.close()
		for _, k := range []struct {
			column, policy string
			size           uint64
			sleep          bool
		}{{"4 KiB, p1", "p1", smallSize, false}, {"64 KiB, pa", "pa", 64 << 10, false}, {"1 MiB, pa", "pa", largeSize, false}, {"1 MiB, pa, sleeping", "pa", largeSize, true}} {
			p := r.open(d, 0, 1, "gup", k.policy)
			q := workload.PerfRun{Size: k.size, Sleep: k.sleep}
			absent, touch := q, q
			absent.Dst, touch.Dst, touch.Touch = 1, 1, true
			turns := []*turn{
				r.transfers(p, q, t.cell("present", k.column), nil),
				r.transfers(p, absent, t.cell("absent", k.column), nil),
				r.transfers(p, touch, t.cell("touched first", k.column), nil),
			}
			if !k.sleep {
				turns = append(turns, b.measure(r, p, absent, t.cell(barePageIn, k.column), b.pageIn),
					b.measure(r, p, q, t.cell("raw copy by process_vm_readv, process_vm_writev", k.column), b.copied))
				if slices.Contains(r.kinds(p), workload.Shared) {
					parts := rowOf(k.size)
					f, err := newFiller(k.size * uint64(parts))
					if err == nil {
						turns = append(turns, f.turn(r.count(k.size), parts, t.cell(bareFill, k.column)))
					} else {
						t.note("%s, %s: not measured: %v", k.column, bareFill, err)
					}
					defer f.close()
				}
			}
			if err := r.takeTurns(turns...); err != nil {
				return err
			}
			b.close()
		}
		for _, c := range t.Columns[:3] {
			for _, m := range t.kinds() {
				present, absent, in := t.median("present", c, m), t.median("absent", c, m), t.median(barePageIn, c, m)
				t.note("%s, memory %s: a fault adds %.2fx the bare page-in; absent is %.2fx the sum of present and bare page-in, and %.2fx touching first.",
					c, m, (absent-present)/in, absent/(present+in), absent/t.median("touched first", c, m))
				if fill := t.median(bareFill, c, m); fill > 0 && m == workload.Shared {
					t.note("%s, memory %s: a fault adds %.2fx the bare fill.", c, m, (absent-present)/fill)
				}
			}
		}
		return nil
	})
}

// methods measures every page-in method beside present memory. exanetctl demo shows it.
func (r *run) methods() error {
	r.usual(workload.Memories...)
	t := r.table("methods", "Page-in methods", "us", "destination", "present")
	return r.with(2, func(d *pfd) error {
		for _, k := range []struct {
			column, policy string
			size           uint64
		}{{"4 KiB, p1", "p1", smallSize}, {"1 MiB, pa", "pa", largeSize}} {
			var turns []*turn
			for _, m := range methodNames {
				p := r.open(d, 0, 1, m, k.policy)
				if len(turns) == 0 {
					turns = append(turns, r.transfers(p, workload.PerfRun{Size: k.size}, t.cell("present", k.column), nil))
				}
				turns = append(turns, r.transfers(p, workload.PerfRun{Size: k.size, Dst: 1}, t.cell("absent, by "+m, k.column), nil))
				if m == "gup" {
					turns = append(turns, r.transfers(p, workload.PerfRun{Size: k.size, Dst: 1, Touch: true}, t.cell("touched first", k.column), nil))
				}
			}
			if err := r.takeTurns(turns...); err != nil {
				return err
			}
			if err := d.closePerfs(); err != nil {
				return err
			}
		}
		t.note("PART's board (002): 4 KiB absent 38 us, 6.3 times present; 1 MiB absent 2.6 times, touched first 2 times.")
		return nil
	})
}

// where measures faults at the destination, the source and both by method, and transfers with
// all pages absent by policy and size.
func (r *run) where() error {
	r.usual(workload.Memories...)
	defer r.usual(workload.Shared)
	t := r.table("where", "Where the page is absent, by method: 4 KiB, p1", "us", "method", "present")
	s := r.table("policies", "All pages of the destination absent, by policy (gup)", "us", "size", "present")
	return r.with(2, func(d *pfd) error {
		var turns []*turn
		for _, m := range methodNames {
			p := r.open(d, 0, 1, m, "p1")
			for _, k := range []struct {
				column   string
				src, dst float64
			}{{"present", 0, 0}, {"destination", 0, 1}, {"source", 1, 0}, {"both", 1, 1}} {
				turns = append(turns, r.transfers(p, workload.PerfRun{Size: smallSize, Src: k.src, Dst: k.dst, Count: r.count(smallSize) / 2}, t.cell(m, k.column), nil))
			}
		}
		if err := r.takeTurns(turns...); err != nil {
			return err
		}
		turns = nil
		perfs := map[string]*workload.Perf{}
		for _, policy := range policyNames {
			p := r.open(d, 0, 1, "gup", policy)
			perfs[policy] = p
		}
		for size := uint64(16 << 10); size <= 4<<20; size *= 4 {
			row := sizeText(size)
			turns := []*turn{
				r.transfers(perfs["pa"], workload.PerfRun{Size: size}, s.cell(row, "present"), nil),
				r.transfers(perfs["pa"], workload.PerfRun{Size: size, Dst: 1, Touch: true}, s.cell(row, "touched first"), nil),
			}
			for _, policy := range policyNames {
				turns = append(turns, r.transfers(perfs[policy], workload.PerfRun{Size: size, Dst: 1}, s.cell(row, policy), nil))
			}
			if err := r.takeTurns(turns...); err != nil {
				return err
			}
		}
		return nil
	})
}

// prefetch measures reads into memory that the initiator prefetches at the same time.
func (r *run) prefetch() error {
	t := r.table("prefetch", "Reads into memory that is prefetched (`Endpoint.Prefetch`) while they go on (gup, pa)", "us", "destination", "absent")
	return r.with(2, func(d *pfd) error {
		p := r.open(d, 0, 1, "gup", "pa")
		var turns []*turn
		for _, size := range []uint64{smallSize, 64 << 10, largeSize} {
			for _, k := range []struct {
				row string
				q   workload.PerfRun
			}{
				{"present", workload.PerfRun{}}, {"absent", workload.PerfRun{Dst: 1}}, {"touched first", workload.PerfRun{Dst: 1, Touch: true}},
				{"prefetched meanwhile", workload.PerfRun{Dst: 1, Prefetch: true}},
			} {
				k.q.Size, k.q.Read = size, true
				turns = append(turns, r.transfers(p, k.q, t.cell(k.row, sizeText(size)), nil))
			}
		}
		return r.takeTurns(turns...)
	})
}

// timeouts compares source faults whose block is paused and requested again with those on a
// node without TXFIFO, which end with the sender's time-out (000 §4, 002 fig. 9).
func (r *run) timeouts() error {
	t := r.table("timeouts", "RAPF against time-outs: 4 KiB, gup, p1", "us", "what sends the block again", "RAPF, by TXFIFO")
	names := []string{"RAPF, by TXFIFO"}
	args := [][]string{nil}
	for _, us := range []int{25000, 2500, 1000, 100} {
		names = append(names, fmt.Sprintf("time-out of %v", time.Duration(us)*time.Microsecond))
		args = append(args, []string{"--source-faults", "timeout", "--timeout-us", strconv.Itoa(us)})
	}
	s := r.table("source", "All pages of the source absent, time-out of 1 ms, by policy (gup)", "us", "size", "p4")
	return r.each(2, args, func(d []*pfd) error {
		var turns []*turn
		for _, policy := range policyNames[:2] {
			p := r.open(d[3], 0, 1, "gup", policy)
			for size := uint64(16 << 10); size <= 64<<10; size *= 2 {
				turns = append(turns, r.transfers(p, workload.PerfRun{Size: size, Src: 1, Parts: 4, Count: max(r.Count/50, 1)}, s.cell(sizeText(size), policy), nil))
			}
		}
		for i, name := range names {
			p := r.open(d[i], 0, 1, "gup", "p1")
			for _, k := range []struct {
				column   string
				src, dst float64
			}{{"destination", 0, 1}, {"source", 1, 0}, {"both", 1, 1}} {
				turns = append(turns, r.transfers(p, workload.PerfRun{Size: smallSize, Src: k.src, Dst: k.dst, Parts: 8, Count: max(r.Count/20, 1)}, t.cell(name, k.column), nil))
			}
		}
		return r.takeTurns(turns...)
	})
}

// latency measures writes and reads by size.
func (r *run) latency() error {
	t := r.table("latency", "Latency by size (gup, pa)", "us", "size", "write")
	return r.with(2, func(d *pfd) error {
		p := r.open(d, 0, 1, "gup", "pa")
		for size := uint64(16); size <= 4<<20; size *= 4 {
			row := sizeText(size)
			q := workload.PerfRun{Size: size}
			read, absent, both := q, q, q
			read.Read, absent.Dst, both.Read, both.Dst = true, 1, true, 1
			if err := r.takeTurns(
				r.transfers(p, q, t.cell(row, "write"), nil),
				r.transfers(p, q, t.cell(row, "write that notifies"), t.cell(row, "its notification")),
				r.transfers(p, read, t.cell(row, "read"), nil),
				r.transfers(p, absent, t.cell(row, "write, absent"), nil),
				r.transfers(p, both, t.cell(row, "read, absent"), nil),
			); err != nil {
				return err
			}
		}
		return nil
	})
}

// frequencies are the percentages of absent pages (002 fig. 11).
var frequencies = []int{0, 5, 20, 40, 60, 80, 100}

func (r *run) frequency() error {
	r.usual(workload.Memories...)
	t := r.table("frequency", "1 MiB by how many pages are absent (gup)", "us", "% of pages absent", "0")
	return r.with(2, func(d *pfd) error {
		var turns []*turn
		perfs := make([]*workload.Perf, len(policyNames))
		for i, policy := range policyNames {
			perfs[i] = r.open(d, 0, 1, "gup", policy)
		}
		for _, f := range frequencies {
			for i, policy := range policyNames {
				turns = append(turns, r.transfers(perfs[i], workload.PerfRun{Size: largeSize, Dst: float64(f) / 100}, t.cell(strconv.Itoa(f), policy), nil))
			}
		}
		return r.takeTurns(turns...)
	})
}

// overheads measures the calls that programs make to avoid faults (000 table 4.1, 002 fig. 7).
func (r *run) overheads() error {
	t := r.table("overheads", "Calls on a buffer", "us", "size", "")
	var turns []*turn
	for size := uint64(16); size <= 4<<20; size *= 4 {
		row := sizeText(size)
		for _, name := range []string{"mmap", "munmap", "mlock", "munlock", "touch, absent", "touch, present"} {
			t.cell(row, name)
		}
		turns = append(turns, &turn{count: r.count(size), do: func(add func(*Cell, ...float64)) error {
			lap := func(column string, f func() error) error {
				start := time.Now()
				err := f()
				add(t.cell(row, column), float64(time.Since(start).Nanoseconds())/1e3)
				if err != nil {
					return fmt.Errorf("%s of %d bytes: %w", column, size, err)
				}
				return nil
			}
			var b []byte
			touch := func() error {
				for i := 0; i < len(b); i += 4096 {
					b[i]++
				}
				return nil
			}
			mmap := func() (err error) {
				b, err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
				return err
			}
			munmap := func() error { return unix.Munmap(b) }
			if err := errors.Join(mmap(), unix.Madvise(b, unix.MADV_NOHUGEPAGE), lap("mlock", func() error { return unix.Mlock(b) }),
				lap("munlock", func() error { return unix.Munlock(b) }), munmap()); err != nil {
				return err
			}
			return errors.Join(lap("mmap", mmap), unix.Madvise(b, unix.MADV_NOHUGEPAGE), lap("touch, absent", touch), lap("touch, present", touch), lap("munmap", munmap))
		}})
	}
	return r.takeTurns(turns...)
}

// breakdown measures the stages of a fault from pfd's log of the last faults.
func (r *run) breakdown() error {
	t := r.table("breakdown", "The stages of a write of 4 KiB that faults (p1)", "us", "stage", "")
	return r.with(2, func(d *pfd) error {
		last := int64(0) // time of the last fault that was counted
		for _, m := range methodNames {
			p := r.open(d, 0, 1, m, "p1")
			for _, k := range r.kinds(p) { // one after the other: the log does not name the kind
				if err := r.takeTurns(
					r.transfers(p, workload.PerfRun{Size: smallSize, Memory: k}, t.cell("write, present", m), nil),
					r.transfers(p, workload.PerfRun{Size: smallSize, Memory: k, Dst: 1, Count: r.count(smallSize) / 2}, t.cell("write, absent", m), nil),
					r.processor(d, p, k, t.cell("pfd's processor time for one", m).of(k)),
				); err != nil {
					return err
				}
				list, err := d.client.Faults(r.ctx, control.AllNodes, control.MaxFaults)
				if err != nil {
					return err
				}
				from := last
				for _, f := range list {
					if last = max(last, f.TimeNS); f.TimeNS <= from || f.RAPFNS < 0 || f.StartedNS < 0 || f.ResidentNS < 0 {
						continue
					}
					for _, s := range []struct {
						name string
						ns   int64
					}{{"drain", f.DrainedNS}, {"queue", f.StartedNS - f.DrainedNS}, {"page in", f.ResidentNS - f.StartedNS}, {"answer", f.RAPFNS - f.ResidentNS}, {"the driver's stages", f.RAPFNS}} {
						c := t.cell(s.name, m).of(k)
						c.Samples = append(c.Samples, float64(s.ns)/1e3)
					}
				}
			}
		}
		if r.BPFFS != "" {
			if err := r.probed(d); err != nil {
				return err
			}
		}
		t.note("drain: from the interrupt until the entry is taken from the FIFO; queue: until its page-in begins; page in: until the page is resident; answer: until the retransmission is requested. exanetctl trace measures the stages before and after.")
		return r.driver(d)
	})
}

// probed measures the stages with the probe, from the doorbell until the process sees the end.
func (r *run) probed(d *pfd) (err error) {
	t := r.table("breakdown-probe", "The same by the probe (`exanetctl trace`): p50 of each stage", "us", "stage", "")
	t.Columns = slices.Clone(methodNames)
	if _, err := probe.On(probe.Start{Dir: r.BPFFS, Programs: []string{fmt.Sprintf("/proc/%d/exe", d.pid)}}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, probe.Off(r.BPFFS)) }()
	for _, p := range d.perfs {
		if _, err := p.Run(r.ctx, workload.PerfRun{Size: smallSize, Memory: r.kinds(p)[0], Dst: 1, Count: r.count(smallSize) / 2, Parts: smallRow}); err != nil {
			return err
		}
	}
	m, err := probe.Open(r.BPFFS)
	if err != nil {
		return err
	}
	defer m.Close()
	list, err := m.Latencies()
	if err != nil {
		return err
	}
	for _, stage := range probe.StageNames() {
		for _, l := range list {
			if l.Stage == stage && (l.Kind == "minor" || l.Method == "touch") && slices.Contains(methodNames, l.Method) {
				t.cell(stage, l.Method).Samples = []float64{float64(l.P50NS) / 1e3}
			}
		}
	}
	return nil
}

// driver measures the driver's interrupts for a write whose pages are all absent, and pfd's
// processor time beyond that of a write into present memory (000 fig. 4.7).
func (r *run) driver(d *pfd) error {
	t := r.table("driver", "The driver for a write whose pages are all absent (gup)", "", "size", "")
	var turns []*turn
	for _, policy := range policyNames {
		p := r.open(d, 0, 1, "gup", policy)
		for size := uint64(smallSize); size <= largeSize; size *= 4 {
			row := sizeText(size)
			invocations, time := t.cell(row, policy+": interrupts"), t.cell(row, policy+": us of pfd's processor")
			turns = append(turns, &turn{count: max(r.Count/100, 1), do: func(add func(*Cell, ...float64)) error {
				for _, m := range r.kinds(p) {
					q := workload.PerfRun{Size: size, Memory: m, Count: 1, Cold: true}
					_, present, _, err := r.costOf(d, p, q)
					if err != nil {
						return err
					}
					q.Dst = 1
					_, us, n, err := r.costOf(d, p, q)
					if err != nil {
						return err
					}
					add(invocations.of(m), n)
					add(time.of(m), us-present)
				}
				return nil
			}})
		}
	}
	t.note("us: pfd's processor time for such a write, less that for a write into present memory.")
	return r.takeTurns(turns...)
}

// processor returns the case of pfd's processor time for a faulting write in a kind of memory.
func (r *run) processor(d *pfd, p *workload.Perf, m workload.Memory, c *Cell) *turn {
	return &turn{count: max(r.Count/100, 1), do: func(add func(*Cell, ...float64)) error {
		_, us, _, err := r.costOf(d, p, workload.PerfRun{Size: smallSize, Memory: m, Dst: 1, Count: 1, Cold: true})
		add(c, us)
		return err
	}}
}

// Parameters of the strategies suite: the papers' 400 MiB, scaled. Values are defined by this
// project.
const (
	pinLimit   = 256 // pages that may be pinned at each end
	putsAPage  = 4
	strategyKB = pinLimit * 4
)

// strategies measures each strategy with working sets around the limit of pinned pages.
func (r *run) strategies() error {
	t := r.table("strategies", fmt.Sprintf("Puts of 8 bytes by working set; at most %d KiB pinned", strategyKB), "us", "strategy", workload.Strategies[0].Name)
	s := r.table("costs", fmt.Sprintf("The same with puts of 4 KiB and %d KiB", 2*strategyKB), "", "strategy", "")
	return r.with(2, func(d *pfd) error {
		p := r.open(d, 0, 1, "gup", "p1")
		var turns []*turn
		for i := range workload.Strategies {
			g := &workload.Strategies[i]
			run := func(size uint64, pages int, f func(workload.StrategyResult, func(*Cell, ...float64))) *turn {
				pages = max(min(pages, r.Count), 8) // smaller in short runs
				return &turn{count: 2 * pages, do: func(add func(*Cell, ...float64)) error {
					got, err := p.Puts(r.ctx, g, workload.StrategyRun{Size: size, Pages: pages, Puts: putsAPage * pages, Limit: min(pinLimit, max(r.Count/4, 8))})
					if err != nil {
						return fmt.Errorf("%s: %w", g.Name, err)
					}
					f(got, add)
					return nil
				}}
			}
			for _, k := range []struct {
				column string
				pages  int
			}{{"M / 2", pinLimit / 2}, {"M", pinLimit}, {"2 M", 2 * pinLimit}, {"4 M", 4 * pinLimit}} {
				turns = append(turns, run(8, k.pages, func(got workload.StrategyResult, add func(*Cell, ...float64)) {
					// The first half fills caches.
					add(t.cell(g.Name, k.column), us(got.Latencies[len(got.Latencies)/2:])...)
				}))
			}
			turns = append(turns, run(smallSize, 2*pinLimit, func(got workload.StrategyResult, add func(*Cell, ...float64)) {
				all := us(got.Latencies)
				add(s.cell(g.Name, "the first puts, us"), all[:len(all)/8]...)
				add(s.cell(g.Name, "the last puts, us"), all[len(all)/2:]...)
				add(s.cell(g.Name, "puts a second"), float64(len(all))/got.Elapsed.Seconds())
				add(s.cell(g.Name, "before them, us"), float64(got.Setup.Nanoseconds())/1e3)
				add(s.cell(g.Name, "KiB resident"), float64(got.Resident>>10))
				add(s.cell(g.Name, "KiB pinned"), float64(got.Pinned>>10))
				add(s.cell(g.Name, "lines of a user"), float64(g.Lines()))
			}))
			t.note("%s: %s.", g.Name, g.About)
		}
		return r.takeTurns(turns...)
	})
}

// variants measures the turns of f with a pfd for each list of arguments.
func (r *run) variants(policy string, args [][]string, f func(i int, p *workload.Perf) []*turn) error {
	return r.each(2, args, func(d []*pfd) error {
		var turns []*turn
		for i := range d {
			p := r.open(d[i], 0, 1, "gup", policy)
			turns = append(turns, f(i, p)...)
		}
		return r.takeTurns(turns...)
	})
}

// outstanding varies the number of blocks of a transfer in flight.
func (r *run) outstanding() error {
	t := r.table("outstanding", "Blocks of a transfer in flight (`pfd --outstanding`), 1 MiB, pa", "us", "blocks", "8")
	blocks := []string{"1", "2", "8"}
	var args [][]string
	for _, n := range blocks {
		args = append(args, []string{"--outstanding", n})
	}
	return r.variants("pa", args, func(i int, p *workload.Perf) []*turn {
		return []*turn{
			r.transfers(p, workload.PerfRun{Size: largeSize}, t.cell(blocks[i], "present"), nil),
			r.transfers(p, workload.PerfRun{Size: largeSize, Dst: 1}, t.cell(blocks[i], "absent"), nil),
		}
	})
}

// firmware measures with each optimization of 001 §3.3 switched off.
func (r *run) firmware() error {
	t := r.table("firmware", "Optimizations of the firmware (`pfd --firmware-options`)", "us", "options", "all")
	options := []string{"all", "no-fastpath", "no-bypass", "no-tickets", "no-counters", "no-retransmission-bit", "none"}
	var args [][]string
	for _, o := range options {
		args = append(args, []string{"--firmware-options", o})
	}
	return r.variants("p1", args, func(i int, p *workload.Perf) []*turn {
		return []*turn{
			r.transfers(p, workload.PerfRun{Size: smallSize}, t.cell(options[i], "4 KiB present"), nil),
			r.transfers(p, workload.PerfRun{Size: largeSize}, t.cell(options[i], "1 MiB present"), nil),
			r.transfers(p, workload.PerfRun{Size: largeSize, Dst: 1}, t.cell(options[i], "1 MiB absent, p1"), nil),
		}
	})
}
