package bench

import (
	"errors"
	"fmt"

	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/trace/probe"
)

// tracedParts is the number of transfers in a row of the tracing suite. It is high because
// attaching and detaching between two rows take much longer. Defined by this project.
const tracedParts = 256

// traced is a case of the tracing suite.
type traced struct {
	name    string
	d       *pfd
	sources []string // sources to attach; nil means none, empty means all
}

// tracing measures transfers into absent 4 KiB with the probe's sources attached, one by one
// and together, beside the same pfd without them and, if Untraced is set, a pfd without the
// probe point.
func (r *run) tracing() error {
	if r.BPFFS == "" {
		return fmt.Errorf("%w: no directory of a bpffs is named (--bpffs)", workload.ErrSkipped)
	}
	t := r.table("tracing", "Tracing (`exanetctl trace`), 4 KiB absent, p1", "us", "attached", "detached")
	t.Paired = true
	return r.with(2, func(d *pfd) (err error) {
		r.open(d, 0, 1, "gup", "p1")
		names := probe.SourceNames()
		ways := []traced{{"detached", d, nil}, {names[0] + ": the records alone", d, names[:1]}}
		for _, n := range names[1:] {
			ways = append(ways, traced{names[0] + ", " + n, d, []string{n}})
		}
		ways = append(ways, traced{"everything", d, []string{}})
		if r.Untraced != "" {
			u, err := start(r.ctx, r.Untraced, 2)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, u.stop()) }()
			r.open(u, 0, 1, "gup", "p1")
			ways = append(ways, traced{"a pfd without the probe point", u, nil})
		}
		var turns []*turn
		for _, w := range ways {
			turns = append(turns, &turn{count: max(r.Count/50, 2), do: func(add func(*Cell, ...float64)) error { return r.traced(w, t, add) }})
		}
		return r.takeTurns(turns...)
	})
}

// traced attaches the sources, measures a row of transfers and detaches: one sample of each
// figure.
func (r *run) traced(w traced, t *Table, add func(*Cell, ...float64)) (err error) {
	if w.sources != nil {
		start := probe.Start{Dir: r.BPFFS, Programs: []string{fmt.Sprintf("/proc/%d/exe", w.d.pid)}, Sources: w.sources}
		if _, err := probe.On(start); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, probe.Off(r.BPFFS)) }()
	}
	p := w.d.perfs[0]
	m := r.kinds(p)[0]
	got, spent, _, err := r.costOf(w.d, p, workload.PerfRun{Size: smallSize, Memory: m, Count: 2 * tracedParts, Dst: 1, Parts: tracedParts, Cold: true})
	if err != nil {
		return err
	}
	add(t.cell(w.name, "a write").of(m), summarize(us(got.Latencies)).Median)
	add(t.cell(w.name, "pfd's processor time for one").of(m), spent)
	return nil
}
