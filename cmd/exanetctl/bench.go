package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/workload/bench"
)

// benchCommand is what `make bench` runs.
func (a *app) benchCommand() *cobra.Command {
	l := bench.Lab{Command: testProcess(), Largest: 16 << 20}
	var file string
	c := &cobra.Command{
		Use:    "bench",
		Short:  "Measure transfers into absent memory against transfers into present memory, and what each part brings",
		Hidden: true,
		Args:   maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.Small < 1 || l.Large < 1 {
				return usagef("--small and --large: want 1 transfer or more")
			}
			if l.Window <= 0 {
				return usagef("--window %v: want more than 0", l.Window)
			}
			for _, p := range l.Only {
				if !slices.Contains(bench.Parts, p) {
					return usagef("--only %s: want some of %s", p, strings.Join(bench.Parts, ", "))
				}
			}
			if file != "" && len(l.Only) > 0 {
				return usagef("--write and --only: a document gets all tables of one run")
			}
			return a.bench(cmd.Context(), l, file)
		},
	}
	f := c.Flags()
	f.StringVar(&l.PFD, "pfd", "bin/pfd", "the pfd to start")
	f.IntVar(&l.Small, "small", 1000, "transfers of 4 KiB of each kind")
	f.IntVar(&l.Large, "large", 200, "transfers of 1 MiB of each kind")
	f.DurationVar(&l.Window, "window", time.Second, "how long each number of channels is kept busy")
	f.StringSliceVar(&l.Only, "only", nil, "measure only these parts: "+strings.Join(bench.Parts, ", "))
	f.StringVar(&file, "write", "", "document whose section the tables replace")
	return c
}

func (a *app) bench(ctx context.Context, l bench.Lab, file string) error {
	if !a.wantJSON() {
		l.Progress = func(what string) { fmt.Fprintln(a.err, "measuring:", what) }
	}
	r, err := l.Run(ctx)
	if err != nil {
		return err
	}
	if r.PinnedBytes != 0 {
		return fmt.Errorf("%d bytes were pinned, want 0", r.PinnedBytes)
	}
	text := r.Markdown()
	if file != "" {
		if err := bench.Replace(file, "bench", text); err != nil {
			return err
		}
	}
	if a.wantJSON() {
		return a.printJSON(r)
	}
	_, err = fmt.Fprint(a.out, text)
	return err
}
