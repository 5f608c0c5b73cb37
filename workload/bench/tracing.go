package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/exanet/pfd/trace/probe"
	"github.com/exanet/pfd/workload"
)

// Transfers of a turn of tracing, and how many of them, the first, do not count for the
// latency (ours): what comes before them, attaching and detaching, takes much longer.
const (
	tracedParts = 512
	tracedCold  = 64
)

// traced is a way to be traced.
type traced struct {
	name    string
	d       *pfd
	s       *workload.Session
	sources []string // attached, nil: none; empty: all

	us, cpu []float64 // of each round
}

// tracing is 4 KiB absent with the probe's sources attached, one by one and together, each
// beside the same pfd detached and, where Untraced is one, a pfd without the point.
func (l *Lab) tracing(ctx context.Context, r *Report, p *pins) error {
	if l.BPFFS == "" {
		return nil
	}
	return l.with(ctx, 2, func(d *pfd) (err error) {
		var open sessions
		defer open.close(&err)
		s, err := l.open(ctx, d, 0, 1, "gup", "p1")
		if err != nil {
			return err
		}
		open.add(s)
		names := probe.SourceNames()
		ways := []*traced{{name: "detached", d: d, s: s}, {name: names[0] + ": the records alone", d: d, s: s, sources: names[:1]}}
		for _, n := range names[1:] {
			ways = append(ways, &traced{name: names[0] + ", " + n, d: d, s: s, sources: []string{n}})
		}
		ways = append(ways, &traced{name: "everything", d: d, s: s, sources: []string{}})
		if l.Untraced != "" {
			without := *l
			without.PFD = l.Untraced
			u, err := without.start(ctx, 2)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, u.stop()) }()
			us, err := l.open(ctx, u, 0, 1, "gup", "p1")
			if err != nil {
				return err
			}
			defer us.Close()
			ways = append(ways, &traced{name: "a pfd without the probe point", d: u, s: us})
		}
		l.says("tracing")
		for i := range 1 + max(l.Small/50, 2) {
			for _, w := range ways {
				if err := errors.Join(ctx.Err(), w.turn(l, p, i == 0)); err != nil {
					return fmt.Errorf("tracing, %s: %w", w.name, err)
				}
			}
		}
		for _, w := range ways {
			t := Traced{Attached: w.name, Latency: middle(w.us), Processor: middle(w.cpu)}
			t.Added, t.AddedLow, t.AddedHigh = beside(w.us, ways[0].us, func(a, b float64) float64 { return 100 * (a/b - 1) })
			t.AddedProcessor, t.AddedProcessorLow, t.AddedProcessorHigh = beside(w.cpu, ways[0].cpu, func(a, b float64) float64 { return a - b })
			r.Tracing = append(r.Tracing, t)
		}
		return nil
	})
}

// turn attaches, has transfers made, and detaches.
func (w *traced) turn(l *Lab, p *pins, warm bool) (err error) {
	if w.sources != nil {
		start := probe.Start{Dir: l.BPFFS, Programs: []string{fmt.Sprintf("/proc/%d/exe", w.d.pid)}, Sources: w.sources}
		if _, err := probe.On(start); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, probe.Off(l.BPFFS)) }()
	}
	before, err := used(w.d.pid)
	if err != nil {
		return err
	}
	o, err := w.s.Do(workload.Transfer{
		Size: smallSize, Parts: tracedParts, Src: workload.Present, Dst: workload.Absent, Waiting: workload.Poll, Timeout: workload.DefaultTimeout,
	})
	if err != nil {
		return err
	}
	after, err := used(w.d.pid)
	if err != nil {
		return err
	}
	if !o.Arrived || o.Wrong != "" || len(o.Parts) != tracedParts {
		return fmt.Errorf("%d of %d transfers: %s%s", len(o.Parts), tracedParts, o.Failure, o.Wrong)
	}
	p.most = max(p.most, o.Pinned)
	if warm {
		return nil
	}
	part := o.Parts[tracedCold:]
	slices.Sort(part)
	w.us = append(w.us, float64(part[(len(part)-1)/2])/float64(time.Microsecond))
	w.cpu = append(w.cpu, float64(after-before)/tracedParts/float64(time.Microsecond))
	return nil
}

func middle(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[(len(v)-1)/2]
}

// beside compares what was measured in the same rounds: the median, and the interval that
// holds the true one in 95 of 100 cases, by the order of the rounds alone.
func beside(a, b []float64, f func(a, b float64) float64) (mid, low, high float64) {
	v := make([]float64, len(a))
	for i := range a {
		v[i] = f(a[i], b[i])
	}
	slices.Sort(v)
	n := float64(len(v))
	at := func(x float64) float64 { return v[min(max(int(x), 0), len(v)-1)] }
	return middle(v), at(math.Floor(n/2 - 0.98*math.Sqrt(n))), at(math.Ceil(n/2 + 0.98*math.Sqrt(n)))
}
