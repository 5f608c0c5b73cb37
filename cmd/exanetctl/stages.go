package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/internal/live"
)

var stageColumns = []string{"STAGE", "P50_US", "P99_US", "THE_MEDIAN_FAULT"}

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
			scope, stages := a.scope(cmd.Context(), c), live.Stages(faults)
			if a.wantJSON() {
				return a.printJSON(struct {
					Version int          `json:"version"`
					SeesAll bool         `json:"sees_all"`
					Stages  []live.Stage `json:"stages"`
				}{control.Version, scope == "", append([]live.Stage{}, stages...)})
			}
			t := a.table(stageColumns...)
			if len(stages) == 0 {
				return a.none(t, "no fault was resolved yet: make some with `exanetctl write --dst absent`", scope)
			}
			t.stages(stages, barWidth)
			return a.flush(t, scope)
		},
	}
	c.Flags().IntVarP(&last, "last", "n", control.MaxFaults, "how many faults, the newest ones")
	a.tableFlags(c, stageColumns...)
	c.ValidArgsFunction = once(a.nodeWords())
	return c
}

// stages adds a row for each, with a bar of where the median fault was in it.
func (t *table) stages(stages []live.Stage, width int64) {
	for _, s := range stages {
		scale := func(ns int64) int { return int(ns * width / max(stages[len(stages)-1].ToNS, 1)) }
		bar := strings.Repeat(" ", scale(s.FromNS)) + strings.Repeat("#", max(scale(s.ToNS)-scale(s.FromNS), 1))
		t.add(s.Name, micros(s.P50NS), micros(s.P99NS), bar)
	}
}
