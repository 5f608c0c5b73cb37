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

	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/workload"
	"github.com/exanet/pfd/workload/bench"
)

// benchFlags are those of bench and study.
type benchFlags struct {
	bench.Lab
	dir, docs, memory string
}

func (b *benchFlags) flags(c *cobra.Command, memory string) {
	f := c.Flags()
	f.StringVar(&b.PFD, "pfd", "", "the pfd to start (default the one beside exanetctl)")
	f.IntVar(&b.Count, "count", 1000, "samples of each case of up to 16 KiB; larger ones have a fifth or fewer")
	f.StringVar(&b.memory, "memory", "", "kind of memory: shared with pfd, any of the processes, or both ("+memory+")")
	values(c, "memory", string(workload.Shared), string(workload.Any), bothMemories)
	f.StringVar(&b.dir, "dir", "", "directory for results.jsonl (every sample), results.csv, report.html and pictures")
}

// bothMemories has what takes turns take them in each kind of memory, too.
const bothMemories = "both"

// benchCommand is what `make bench` runs.
func (a *app) benchCommand() *cobra.Command {
	var b benchFlags
	var long strings.Builder
	long.WriteString(`bench starts pfds of its own and test processes, and measures on this machine, side by
side, what each suite describes; "all" is every suite, and takes some minutes. Nothing else
should run: a suite that other programs distorted says so. With -j lines of JSON with every
sample are printed, with -o csv one line for each figure.

`)
	for _, s := range bench.Suites() {
		fmt.Fprintf(&long, "  %-12s %s\n", s.Name, s.About)
	}
	c := &cobra.Command{
		Use:   "bench SUITE...|all",
		Short: "Measure transfers into absent memory beside present memory, and what is done instead",
		Long:  long.String(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			suites, err := bench.Choose(args)
			if err != nil {
				return usagef("%w", err)
			}
			if b.docs != "" && args[0] != "all" {
				return usagef("--docs: documents get the figures of one run: want all suites")
			}
			return a.bench(cmd.Context(), b, suites)
		},
	}
	b.flags(c, "default both where faults are compared with present memory, shared elsewhere")
	f := c.Flags()
	f.StringVar(&b.Untraced, "untraced", "", "a pfd without the probe point, to compare with")
	f.StringVar(&b.BPFFS, "bpffs", "", "directory of a bpffs for tracing, which is not measured without (root)")
	f.DurationVar(&b.Window, "window", time.Second, "how long each number of channels is kept busy")
	f.StringVar(&b.docs, "docs", "", "directory of benchmarks.md and evaluation.md, whose sections this writes")
	return c
}

// studyCommand sweeps what bench measures at a few points.
func (a *app) studyCommand() *cobra.Command {
	var b benchFlags
	var s bench.Study
	var sizes, patterns []string
	c := &cobra.Command{
		Use:   "study",
		Short: "Sweep methods, policies, sizes, patterns, how many pages are absent, and links",
		Long: `study starts pfds of its own, one for each link, and measures writes, or reads, for every combination of what the
flags list. Each list has commas. -o csv gives a line for each combination; --dir gets every
sample, pictures and a report.`,
		Args: maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, text := range sizes {
				n, err := config.ParseSize(text)
				if err != nil {
					return usagef("--sizes: %w", err)
				}
				s.Sizes = append(s.Sizes, n)
			}
			for _, p := range patterns {
				s.Patterns = append(s.Patterns, workload.Pattern(p))
			}
			suite, err := s.Suite()
			if err != nil {
				return usagef("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			return a.bench(cmd.Context(), b, []bench.Suite{suite})
		},
	}
	b.flags(c, "default shared")
	b.Window = time.Second
	f := c.Flags()
	f.StringSliceVar(&s.Methods, "methods", []string{"touch", "gup", "uffd", "populate"}, "how absent pages are brought in")
	f.StringSliceVar(&s.Policies, "policies", []string{"p1", "p4", "pa"}, "how many pages a fault brings in")
	f.StringSliceVar(&sizes, "sizes", []string{"4KiB", "64KiB", "1MiB"}, "bytes of a transfer")
	f.StringSliceVar(&patterns, "patterns", []string{"sequential", "strided", "random", "zipf"}, "order in which memory is visited")
	f.Float64SliceVar(&s.Probabilities, "probabilities", []float64{0, 0.05, 0.2, 0.5, 1}, "how likely a page of the destination is absent")
	f.DurationSliceVar(&s.Delays, "link-delays", []time.Duration{0}, "what each frame between the nodes takes (pfd --link-delay)")
	f.Float64SliceVar(&s.Losses, "link-losses", []float64{0}, "how likely a frame is lost (pfd --link-loss)")
	f.BoolVar(&s.Read, "read", false, "reads instead of writes")
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

func (a *app) bench(ctx context.Context, b benchFlags, suites []bench.Suite) error {
	if b.Count < 1 || b.Window <= 0 {
		return usagef("--count %d, --window %v: want more than 0", b.Count, b.Window)
	}
	switch m := workload.Memory(b.memory); {
	case b.memory == bothMemories:
		b.Memory = workload.Memories
	case slices.Contains(workload.Memories, m):
		b.Memory = []workload.Memory{m}
	case b.memory != "":
		return usagef("--memory %s: want shared, any or both", b.memory)
	}
	if b.dir != "" { // before minutes of measurements, not after them
		if err := os.MkdirAll(b.dir, 0o755); err != nil {
			return err
		}
	}
	if b.PFD == "" {
		b.PFD = besideThis("pfd")
	}
	b.Program, b.Command = "/proc/self/exe", testProcess()
	if !a.wantJSON() {
		b.Progress = func(what string) { fmt.Fprintln(a.err, "measuring", what) }
	}
	r, err := b.Run(ctx, suites)
	if err != nil {
		return err
	}
	if b.dir != "" {
		if err := r.Save(b.dir); err != nil {
			return err
		}
	}
	if b.docs != "" {
		if err := r.Document(b.docs); err != nil {
			return err
		}
	}
	switch a.format {
	case formatJSON:
		err = r.JSON(a.out)
	case formatCSV:
		err = r.CSV(a.out)
	default:
		err = r.Text(a.out)
	}
	if err == nil && r.PinnedBytes != 0 {
		err = fmt.Errorf("%d bytes were pinned, want 0", r.PinnedBytes)
	}
	return err
}
