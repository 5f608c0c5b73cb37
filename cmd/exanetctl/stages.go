package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/live"
)

var stageColumns = []string{"STAGE", "P50_US", "P99_US", "THE_MEDIAN_FAULT"}

// barWidth is the width of the bar for the time of a fault, in characters.
const barWidth = 40

func (a *app) stagesCommand() *cobra.Command {
	var last int
	c := &cobra.Command{
		Use:   "stages [NODE]",
		Short: "Show the time of each stage of the last faults",
		Long: `stages shows the times of the driver's stages for the last resolved faults and draws
the median fault: drain (from the interrupt until the entry is taken from the FIFO),
queue (until its page-in begins), page_in (until the page is resident), answer (until
the retransmission is requested). exanetctl trace measures the stages before and after.`,
		Args: maxArgs(1),
		RunE: a.asking(func(cmd *cobra.Command, c *control.Client, args []string) error {
			id, err := parseID(args, "NODE")
			if err != nil {
				return err
			}
			if last < 1 || last > control.MaxFaults {
				return usagef("--last %d: want 1 to %d", last, control.MaxFaults)
			}
			faults, err := c.Faults(cmd.Context(), id[0], last)
			if err != nil {
				return err
			}
			scope, err := a.askScope(cmd.Context(), c)
			if err != nil {
				return err
			}
			stages := live.Stages(faults)
			if a.wantJSON() {
				return a.printJSON(struct {
					Version int          `json:"version"`
					SeesAll bool         `json:"sees_all"`
					Stages  []live.Stage `json:"stages"`
				}{control.Version, scope == "", append([]live.Stage{}, stages...)})
			}
			t := a.table(stageColumns...)
			if len(stages) == 0 {
				return a.none(t, noStages, scope)
			}
			t.stages(stages, barWidth)
			return a.flush(t, scope)
		}),
	}
	c.Flags().IntVarP(&last, "last", "n", control.MaxFaults, "number of faults, the newest ones")
	a.tableFlags(c, stageColumns...)
	c.ValidArgsFunction = once(a.nodeWords())
	return c
}

// noStages is the text in place of an empty table of stages.
const noStages = "no fault was resolved so far: make some with `exanetctl write --dst absent`"

// stages adds a row for each stage, with a bar for its time in the median fault.
func (t *table) stages(stages []live.Stage, width int64) {
	for _, s := range stages {
		scale := func(ns int64) int { return int(ns * width / max(stages[len(stages)-1].ToNS, 1)) }
		bar := strings.Repeat(" ", scale(s.FromNS)) + strings.Repeat("#", max(scale(s.ToNS)-scale(s.FromNS), 1))
		t.add(s.Name, micros(s.P50NS), micros(s.P99NS), bar)
	}
}
