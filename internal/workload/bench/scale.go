package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/exanet/pfd/internal/workload"
)

// Parameters of the scale suite. A user has at most 8 of a node's 16 slots, each with
// 32 channels for writes. Values are defined by this project.
const (
	streamNodes   = 4
	streamDomains = 8
	streamSize    = 64
	maxChannels   = streamNodes * streamDomains * 32
	streamRounds  = 5

	mostDomains    = 16
	faultingWrites = "faulting writes"
	processorFor   = ": us of pfd's processor for one"

	idleNodes = 4
	idlePairs = 8
)

// scale measures many channels, domains, nodes and pfds at once, and an idle pfd.
func (r *run) scale() error {
	return errors.Join(r.channels(), r.domains(), r.beside(), r.nodes(), r.idle())
}

// channels measures 1 to 1024 busy channels in turns.
func (r *run) channels() error {
	t := r.table("channels", "Channels kept busy", "", "channels", "")
	return r.with(streamNodes, func(d *pfd) error {
		stream := func(m workload.Memory, size uint64) (err error) {
			s, err := workload.OpenStream(r.ctx, d.client, workload.Options{Socket: d.process.Socket(), Command: r.Command}, streamDomains, size, m)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			var turns []*turn
			for n := 1; n <= maxChannels; n *= 4 {
				row := strconv.Itoa(n)
				turns = append(turns, r.busy(t, row, sizeText(size), m, []*pfd{d}, func() (int, time.Duration, error) {
					got, err := s.Run(n, r.Window)
					return got.Transfers, got.Elapsed, err
				}))
			}
			return r.takeTurns(turns...)
		}
		for _, size := range []uint64{streamSize, smallSize} {
			for _, m := range r.measured { // one after the other: a stream uses all slots of a user
				if err := stream(m, size); err != nil {
					return fmt.Errorf("writes of %d bytes: %w", size, err)
				}
			}
		}
		return nil
	})
}

// busy returns the case of pfds that f keeps busy: transfers per second, and the processor
// time of the pfds per transfer.
func (r *run) busy(t *Table, row, what string, m workload.Memory, pfds []*pfd, f func() (int, time.Duration, error)) *turn {
	return &turn{count: streamRounds, do: func(add func(*Cell, ...float64)) error {
		var n int
		var elapsed time.Duration
		us, _, err := r.cost(pfds, func() (_ int, err error) {
			n, elapsed, err = f()
			return n, err
		})
		if err != nil {
			return err
		}
		add(t.cell(row, what+": a second").of(m), float64(max(n, 1))/elapsed.Seconds())
		add(t.cell(row, what+processorFor).of(m), us)
		return nil
	}}
}

// together makes faulting writes with all perfs at once. It returns the number of transfers
// and the time that they take at the sum of the perfs' rates.
func (r *run) together(m workload.Memory, perfs []*workload.Perf) (n int, elapsed time.Duration, err error) {
	var wait sync.WaitGroup
	errs := make([]error, len(perfs))
	counts, rates := make([]int, len(perfs)), make([]float64, len(perfs))
	for i, p := range perfs {
		wait.Go(func() {
			got, err := p.Run(r.ctx, workload.PerfRun{Size: smallSize, Memory: m, Dst: 1, Time: r.Window / 10, Depth: 8, Sleep: true, Cold: true})
			_, rates[i], _ = got.Rate()
			counts[i] = got.Transfers()
			errs[i] = err
		})
	}
	wait.Wait()
	var rate float64
	for i := range perfs {
		n += counts[i]
		rate += rates[i]
	}
	return n, time.Duration(float64(n) / max(rate, 1) * float64(time.Second)), errors.Join(errs...)
}

// domains measures processes that fault at once, and one thread that makes the system calls of
// such transfers in a loop.
func (r *run) domains() error {
	r.usual(workload.Memories...)
	defer r.usual(workload.Shared)
	t := r.table("domains", "Domains whose writes of 4 KiB all fault at once (gup, p1; eight in flight, sleeping)", "", "domains", "")
	return r.with(streamNodes, func(d *pfd) error {
		var b bare
		defer b.close()
		var turns []*turn
		for n := 1; n <= mostDomains; n *= 2 {
			for i := len(d.perfs); i < n; i++ {
				from := i % streamNodes
				r.open(d, from, (from+1)%streamNodes, "gup", "p1")
			}
			for _, m := range r.kinds(d.perfs[0]) {
				turns = append(turns, r.busy(t, strconv.Itoa(n), faultingWrites, m, []*pfd{d}, func() (int, time.Duration, error) { return r.together(m, d.perfs[:n]) }))
			}
		}
		q := workload.PerfRun{Size: smallSize, Dst: 1, Parts: smallRow, Count: streamRounds * smallRow}
		turns = append(turns, b.measure(r, d.perfs[0], q, t.cell("the bare calls", faultingWrites+processorFor), b.faulting))
		if err := r.takeTurns(turns...); err != nil {
			return err
		}
		one, most := strconv.Itoa(1), strconv.Itoa(mostDomains)
		for _, m := range r.kinds(d.perfs[0]) {
			cost := func(row string) float64 { return t.median(row, faultingWrites+processorFor, m) }
			t.note("Pages per processor time relative to the bare calls, memory %s: one domain %.2fx, %s domains %.2fx (goal: 0.8x), which is %.2fx one domain (goal: at least 0.9x).",
				m, cost("the bare calls")/cost(one), most, cost("the bare calls")/cost(most), cost(one)/cost(most))
		}
		return nil
	})
}

// beside measures one faulting write at a time, alone and beside others in flight.
func (r *run) beside() error {
	r.usual(workload.Memories...)
	defer r.usual(workload.Shared)
	t := r.table("beside", "A faulting write of 4 KiB, alone and beside 64 others in flight (gup, p1; sleeping)", "us", "beside", "")
	return r.with(2, func(d *pfd) error {
		for range 3 {
			r.open(d, 0, 1, "gup", "p1")
		}
		kinds := r.kinds(d.perfs[0])
		measure := func(row string, others []*workload.Perf) *turn {
			return &turn{count: streamRounds, do: func(add func(*Cell, ...float64)) error {
				for _, m := range kinds {
					list, err := r.amid(m, d.perfs[0], others)
					if err != nil {
						return err
					}
					s := summarize(us(list))
					add(t.cell(row, "p50").of(m), s.Median)
					add(t.cell(row, "p99").of(m), s.P99)
				}
				return nil
			}}
		}
		err := r.takeTurns(measure("nothing", nil), measure("64 others", d.perfs[1:]))
		for _, m := range kinds {
			t.note("Memory %s: p99 / p50 is %.2f alone and %.2f beside 64 others (goal: 4).", m,
				t.median("nothing", "p99", m)/t.median("nothing", "p50", m), t.median("64 others", "p99", m)/t.median("64 others", "p50", m))
		}
		return err
	})
}

// amid returns the latencies of one's faulting writes, made one at a time, that ran while all
// others had rows of such writes in flight. Writes that ran while another process made its
// memory anew between two rows are left out.
func (r *run) amid(m workload.Memory, one *workload.Perf, others []*workload.Perf) (list []int64, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	var wait sync.WaitGroup
	var lock sync.Mutex // protects rows
	errs, rows := make([]error, len(others)), make([][]workload.PerfRow, len(others))
	within, stop := context.WithCancel(ctx)
	for i, p := range others {
		wait.Go(func() {
			for within.Err() == nil && errs[i] == nil {
				var got workload.PerfResult
				got, errs[i] = p.Run(ctx, workload.PerfRun{Size: smallSize, Memory: m, Dst: 1, Count: 1, Depth: workload.MaxParallel, Sleep: true, Cold: true})
				lock.Lock()
				rows[i] = append(rows[i], got.Rows...)
				lock.Unlock()
			}
		})
	}
	var all workload.PerfResult
	for err == nil && len(list) < r.count(smallSize) {
		var got workload.PerfResult
		got, err = one.Run(ctx, workload.PerfRun{Size: smallSize, Memory: m, Dst: 1, Count: 1, Sleep: true, Cold: true})
		all.Latencies, all.Starts = append(all.Latencies, got.Latencies...), append(all.Starts, got.Starts...)
		lock.Lock()
		list = all.Amid(rows)
		lock.Unlock()
	}
	stop()
	wait.Wait()
	return list, errors.Join(err, errors.Join(errs...))
}

// nodes measures one pair of processes in pfds with 2 to 64 nodes, and several pfds at once.
func (r *run) nodes() error {
	t := r.table("nodes", "A pair of processes in a pfd of so many nodes (gup, p1)", "us", "nodes", "2")
	var args [][]string
	for n := 2; n <= 64; n *= 2 {
		args = append(args, []string{"--nodes", strconv.Itoa(n)}) // overrides the first --nodes
	}
	return r.each(2, args, func(list []*pfd) error {
		var turns []*turn
		for i, d := range list {
			n := 2 << i
			p, row := r.open(d, 0, n-1, "gup", "p1"), strconv.Itoa(n)
			turns = append(turns, r.transfers(p, workload.PerfRun{Size: smallSize}, t.cell(row, "4 KiB present"), nil),
				r.transfers(p, workload.PerfRun{Size: smallSize, Dst: 1}, t.cell(row, "4 KiB absent"), nil))
		}
		if err := r.takeTurns(turns...); err != nil {
			return err
		}
		s := r.table("pfds", "Pfds on one machine, a domain of each faulting as above", "", "pfds", "")
		turns = nil
		for n := 1; n <= 4; n *= 2 {
			var perfs []*workload.Perf
			for _, d := range list[:n] {
				perfs = append(perfs, d.perfs[0])
			}
			for _, m := range r.kinds(perfs[0]) {
				turns = append(turns, r.busy(s, strconv.Itoa(n), faultingWrites, m, list[:n], func() (int, time.Duration, error) { return r.together(m, perfs) }))
			}
		}
		return r.takeTurns(turns...)
	})
}

// idle measures a pfd whose processes make no transfers.
func (r *run) idle() error {
	t := r.table("idle", fmt.Sprintf("An idle pfd of %d nodes with %d processes attached", idleNodes, 2*idlePairs), "", "", "")
	return r.with(idleNodes, func(d *pfd) error {
		for i := range idlePairs {
			from := i % 2 * 2
			r.open(d, from, from+1, "gup", "p1")
		}
		if err := pause(r.ctx, r.Window); err != nil {
			return err
		}
		var elapsed time.Duration
		us, _, err := r.cost([]*pfd{d}, func() (int, error) {
			start := time.Now()
			err := pause(r.ctx, 10*r.Window)
			elapsed = time.Since(start)
			return 1, err
		})
		if err != nil {
			return err
		}
		rss, locked, err := resident(d.pid)
		t.cell("idle", "% of a processor").Samples = []float64{100 * us * 1e3 / float64(elapsed.Nanoseconds())}
		t.cell("idle", "KiB resident").Samples = []float64{float64(rss >> 10)}
		t.cell("idle", "KiB pinned").Samples = []float64{float64(locked >> 10)}
		return err
	})
}
