package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/percentile"
	"github.com/exanet/pfd/internal/sim/scenario"
	"github.com/exanet/pfd/internal/workload/bench"
)

// mostRuns limits the runs of one command (defined by this project).
const mostRuns = 100_000

// simulation is one of several runs.
type simulation struct {
	values []string // of the keys that vary
	file   *scenario.File
	report *scenario.Report
	err    error
}

// simMany runs a scenario with each seed and each combination of values, on all processors, and shows a
// row for each run.
func (a *app) simMany(ctx context.Context, name string, o *simulate) error {
	runs, keys, err := simRuns(name, o)
	if err != nil {
		return err
	}
	next := make(chan *simulation)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(runs)) {
		wg.Go(func() {
			for s := range next {
				s.report, s.err = scenario.Run(ctx, s.file, scenario.Options{})
			}
		})
	}
	for i := range runs {
		if ctx.Err() != nil {
			break
		}
		next <- &runs[i]
	}
	close(next)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	failed := 0
	for i := range runs {
		switch {
		case runs[i].report == nil:
			return runs[i].err
		case runs[i].err != nil:
			failed++
		}
	}
	if a.wantJSON() {
		err = a.printJSON(jsonOfMany(runs, keys))
	} else {
		err = a.printMany(runs, keys)
		if err == nil && o.seeds != "" && a.format != formatCSV {
			err = a.printSeeds(runs, keys)
		}
	}
	if err == nil && o.plot != "" {
		err = simPlot(o.plot, runs, keys)
	}
	if err == nil && failed > 0 {
		return fmt.Errorf("scenario %s: %d of %s failed: exanetctl sim shrink finds the smallest part that fails", name, failed, plural(len(runs), "run"))
	}
	return err
}

// simRuns returns all runs, and the keys that vary.
func simRuns(name string, o *simulate) (runs []simulation, keys []string, err error) {
	seeds := []string{o.seed}
	if o.seeds != "" {
		first, last, ok := strings.Cut(o.seeds, "-")
		from, err := strconv.ParseUint(first, 10, 63)
		to, err2 := strconv.ParseUint(last, 10, 63)
		if err != nil || err2 != nil || !ok || to < from || to-from >= mostRuns {
			return nil, nil, usagef("--seeds %s: want a range of at most %d seeds, as 1-100", o.seeds, mostRuns)
		}
		seeds = nil
		for s := from; s <= to; s++ {
			seeds = append(seeds, strconv.FormatUint(s, 10))
		}
	}
	combinations := [][]string{nil}
	for _, v := range o.vary {
		key, list, ok := strings.Cut(v, "=")
		values := strings.Split(list, ",")
		if !ok || slices.Contains(values, "") || slices.Contains(keys, key) {
			return nil, nil, usagef("--vary %s: want KEY=VALUE,VALUE, as driver.policy=p1,pa, and each key once", v)
		}
		keys = append(keys, key)
		var longer [][]string
		for _, c := range combinations {
			for _, value := range values {
				longer = append(longer, append(c[:len(c):len(c)], value))
			}
		}
		if combinations = longer; len(combinations)*len(seeds) > mostRuns {
			return nil, nil, usagef("--vary and --seeds ask for more than %d runs", mostRuns)
		}
	}
	for _, c := range combinations {
		var more []string
		for i, key := range keys {
			more = append(more, key+"="+c[i])
		}
		one := *o
		one.seed = seeds[0]
		f, err := simFile(name, &one, more...)
		if err != nil {
			return nil, nil, err
		}
		for i, seed := range seeds {
			g := *f
			if i > 0 {
				g.Seed, _ = strconv.ParseUint(seed, 10, 63) // as it was written above
			}
			runs = append(runs, simulation{values: c, file: &g})
		}
	}
	return runs, keys, nil
}

// manyRuns is the JSON of sim run with --seeds or --vary.
type manyRuns struct {
	Version int `json:"version"`
	Runs    []struct {
		Varied map[string]string `json:"varied"`
		simulated
	} `json:"runs"`
}

func jsonOfMany(runs []simulation, keys []string) (v manyRuns) {
	v.Version = control.Version
	for _, r := range runs {
		varied := map[string]string{}
		for i, key := range keys {
			varied[key] = r.values[i]
		}
		v.Runs = append(v.Runs, struct {
			Varied map[string]string `json:"varied"`
			simulated
		}{varied, jsonOf(r.report, r.err)})
	}
	return v
}

func (a *app) printMany(runs []simulation, keys []string) error {
	var head []string
	for _, key := range keys {
		head = append(head, strings.ToUpper(key))
	}
	t := a.table(append(head, "SEED", "COMPLETED", "FAILED", "TIME us", "FRAMES", "P50 us", "P99 us", "Gb/s", "VIOLATION")...)
	for _, s := range runs {
		r, violation := s.report, ""
		if s.err != nil {
			violation = s.err.Error()
		}
		var row []any
		for _, v := range s.values {
			row = append(row, v)
		}
		var g scenario.Group
		if len(r.Groups) > 0 {
			g = r.Groups[0]
		}
		t.add(append(row, r.Seed, r.Completed, r.Transfers-r.Completed, microseconds(r.EndNS), r.Frames, microseconds(g.P50NS), microseconds(g.P99NS),
			fmt.Sprintf("%.2f", g.Rate()/1e9), violation)...)
	}
	return t.flush()
}

// printSeeds shows medians and ranges over the seeds of each combination of values.
func (a *app) printSeeds(runs []simulation, keys []string) error {
	if err := a.println(); err != nil {
		return err
	}
	var head []string
	for _, key := range keys {
		head = append(head, strings.ToUpper(key))
	}
	t := a.table(append(head, "RUNS", "VIOLATIONS", "TIME us", "P50 us", "P99 us", "Gb/s")...)
	for len(runs) > 0 {
		n := slices.IndexFunc(runs, func(s simulation) bool { return !slices.Equal(s.values, runs[0].values) })
		if n < 0 {
			n = len(runs)
		}
		violations := 0
		var values [4][]float64
		for _, s := range runs[:n] {
			if s.err != nil {
				violations++
			}
			var g scenario.Group
			if len(s.report.Groups) > 0 {
				g = s.report.Groups[0]
			}
			for i, v := range [4]float64{float64(s.report.EndNS) / 1e3, float64(g.P50NS) / 1e3, float64(g.P99NS) / 1e3, g.Rate() / 1e9} {
				values[i] = append(values[i], v)
			}
		}
		var row []any
		for _, v := range runs[0].values {
			row = append(row, v)
		}
		row = append(row, n, violations)
		for i, v := range values {
			slices.Sort(v)
			digits := 1
			if i == 3 {
				digits = 2
			}
			row = append(row, fmt.Sprintf("%.*f (%.*f to %.*f)", digits, percentile.Of(v, 50), digits, v[0], digits, v[len(v)-1]))
		}
		t.add(row...)
		runs = runs[n:]
	}
	return t.flush()
}

func microseconds(ns int64) string { return strconv.FormatFloat(float64(ns)/1e3, 'f', 1, 64) }

// simPlot draws the median time of the first workload's transfers over the first key's values, with a
// line for each combination of the others, and the interval of the seeds.
func simPlot(file string, runs []simulation, keys []string) error {
	t := bench.Table{Title: "median time of a transfer", Unit: "us", RowName: keys[0]}
	for _, s := range runs {
		var parts []string
		for i, v := range s.values[1:] {
			parts = append(parts, keys[i+1]+" "+v)
		}
		if len(s.report.Groups) > 0 {
			t.Add(s.values[0], strings.Join(parts, ", "), float64(s.report.Groups[0].P50NS)/1e3)
		}
	}
	text := t.SVG()
	if text == "" {
		return usagef("--plot: there is nothing to draw: two runs or more are drawn, and at most 40 bars where the first --vary has no numbers")
	}
	f, err := outfile.Open(file, outfile.Options{Mode: 0o644})
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
