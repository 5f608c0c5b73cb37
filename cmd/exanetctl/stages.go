package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
)

// barWidth is that of the time a fault takes, in characters.
const barWidth = 40

func (a *app) stagesCommand() *cobra.Command {
	var last int
	c := &cobra.Command{
		Use:   "stages [NODE]",
		Short: "Show where the time of the last faults went, by stages",
		Long: `stages shows how long the driver's stages of the last faults took that were resolved,
and draws the median fault: drain (from the interrupt to the entry taken from the FIFO),
queue (until its page-in begins), page_in (until the page is there), answer (until the
retransmission is asked for). exanetctl trace tells the stages before and after.`,
		Args: maxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args, "NODE")
			if err != nil {
				return err
			}
			if last < 1 || last > control.MaxFaults {
				return usagef("--last %d: want 1 to %d", last, control.MaxFaults)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			faults, err := c.Faults(cmd.Context(), id[0], last)
			if err != nil {
				return err
			}
			return a.stages(faults)
		},
	}
	c.Flags().IntVarP(&last, "last", "n", control.MaxFaults, "how many faults, the newest ones")
	a.tableFlags(c)
	return c
}

// stages shows the stages of faults.
func (a *app) stages(faults []control.Fault) error {
	faults = slices.DeleteFunc(faults, func(f control.Fault) bool { return f.RAPFNS < 0 || f.StartedNS < 0 || f.ResidentNS < 0 })
	if len(faults) == 0 {
		return errors.New("no fault was resolved yet: make some with `exanetctl write --dst absent`")
	}
	slices.SortFunc(faults, func(x, y control.Fault) int { return int(x.RAPFNS - y.RAPFNS) })
	median := faults[len(faults)/2]
	t := a.table("STAGE", "P50_US", "P99_US", "THE_MEDIAN_FAULT")
	scale := func(ns int64) int { return int(ns * barWidth / max(median.RAPFNS, 1)) }
	for _, s := range []struct {
		name   string
		bounds func(*control.Fault) (from, to int64)
	}{
		{"drain", func(f *control.Fault) (int64, int64) { return 0, f.DrainedNS }},
		{"queue", func(f *control.Fault) (int64, int64) { return f.DrainedNS, f.StartedNS }},
		{"page_in", func(f *control.Fault) (int64, int64) { return f.StartedNS, f.ResidentNS }},
		{"answer", func(f *control.Fault) (int64, int64) { return f.ResidentNS, f.RAPFNS }},
		{"total", func(f *control.Fault) (int64, int64) { return 0, f.RAPFNS }},
	} {
		times := make([]int64, len(faults))
		for i := range faults {
			from, to := s.bounds(&faults[i])
			times[i] = to - from
		}
		slices.Sort(times)
		from, to := s.bounds(&median)
		bar := strings.Repeat(" ", scale(from)) + strings.Repeat("#", max(scale(to)-scale(from), 1))
		t.add(s.name, micros(times[len(times)/2]), micros(times[len(times)*99/100]), bar)
	}
	return t.flush()
}
