package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	var brief bool
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure transfers into absent memory against transfers into present memory, and what each part brings",
		Long: `bench starts pfds of its own and test processes, and measures on this machine, side by
side, what docs/benchmarks.md describes. It takes some minutes; nothing else should run.`,
		Args: maxArgs(0),
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
			if file != "" && (brief || len(l.Only) > 0) {
				return usagef("--write: a document gets all tables of one run, without --only and --brief")
			}
			if brief {
				l.Only = []string{"faults", "methods"}
			}
			if l.PFD == "" {
				l.PFD = besideThis("pfd")
			}
			return a.bench(cmd.Context(), l, file, brief)
		},
	}
	f := c.Flags()
	f.StringVar(&l.PFD, "pfd", "", "the pfd to start (default the one beside exanetctl)")
	f.BoolVar(&brief, "brief", false, "only parts faults and methods, in one table")
	f.StringVar(&l.Untraced, "untraced", "", "a pfd without the probe point, to compare with")
	f.StringVar(&l.BPFFS, "bpffs", "", "directory of a bpffs for tracing, which is not measured without (root)")
	f.IntVar(&l.Small, "small", 1000, "transfers of 4 KiB of each kind")
	f.IntVar(&l.Large, "large", 200, "transfers of 1 MiB of each kind")
	f.DurationVar(&l.Window, "window", time.Second, "how long each number of channels is kept busy")
	f.StringSliceVar(&l.Only, "only", nil, "measure only these parts: "+strings.Join(bench.Parts, ", "))
	f.StringVar(&file, "write", "", "document whose section the tables replace")
	return c
}

// besideThis is a program in the directory of this one.
func besideThis(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name // PATH has it, or the error names it
	}
	return filepath.Join(filepath.Dir(self), name)
}

func (a *app) bench(ctx context.Context, l bench.Lab, file string, brief bool) error {
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
	if brief {
		text = r.Brief()
	}
	_, err = fmt.Fprint(a.out, text)
	return err
}
