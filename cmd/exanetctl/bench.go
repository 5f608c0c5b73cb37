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
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/internal/workload/bench"
)

// benchFlags are the flags of bench and study.
type benchFlags struct {
	bench.Lab
	dir, docs, memory string
}

func (b *benchFlags) flags(c *cobra.Command, memory string) {
	f := c.Flags()
	f.StringVar(&b.PFD, "pfd", "", "the pfd to start (default the one beside exanetctl)")
	f.IntVar(&b.Count, "count", 1000, "samples of each case of up to 16 KiB; larger cases have at most a fifth")
	f.StringVar(&b.memory, "memory", "", "kind of memory: shared (with pfd), any (private to a process), or both ("+memory+")")
	values(c, "memory", string(workload.Shared), string(workload.Any), bothMemories)
	f.StringVar(&b.dir, "dir", "", "directory for results.jsonl (every sample), results.csv, report.html and pictures")
}

// bothMemories makes the cases of a comparison take turns in both kinds of memory.
const bothMemories = "both"

// echoCommand is the other end of the ping-pong that bench compares register reads with.
func (a *app) echoCommand() *cobra.Command {
	return &cobra.Command{
		Use:    bench.EchoCommand,
		Short:  "Send back the messages that come on descriptor 3",
		Hidden: true,
		Args:   maxArgs(0),
		RunE:   func(*cobra.Command, []string) error { bench.Echo(); return nil },
	}
}

// benchCommand is the command that `make bench` runs.
func (a *app) benchCommand() *cobra.Command {
	var b benchFlags
	var long strings.Builder
	long.WriteString(`bench starts its own pfds and test processes and runs suites of measurements on this
machine; "all" runs every suite and takes some minutes. Run no other programs meanwhile: the
report marks suites that were distorted by others. With -j bench prints lines of JSON with
every sample, with -o csv one line for each figure.

`)
	for _, s := range bench.Suites() {
		fmt.Fprintf(&long, "  %-12s %s\n", s.Name, s.About)
	}
	c := &cobra.Command{
		Use:   "bench SUITE...|all",
		Short: "Compare transfers into absent memory with present memory and with pinning",
		Long:  long.String(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			suites, err := bench.Choose(args)
			if err != nil {
				return usagef("%w", err)
			}
			if b.docs != "" && args[0] != "all" && !slices.Equal(args, []string{"folios"}) && !slices.Equal(args, []string{"hosts"}) {
				return usagef("--docs: the documents need the figures of all suites from one run: use `bench all`; only `bench folios` and `bench hosts` have sections of their own")
			}
			return a.bench(cmd.Context(), b, suites)
		},
	}
	b.flags(c, "default both if a suite compares faults with present memory, else shared")
	f := c.Flags()
	f.StringVar(&b.Untraced, "untraced", "", "a pfd without the probe point to compare with")
	f.StringVar(&b.BPFFS, "bpffs", "", "directory of a bpffs; needed to measure tracing (root)")
	f.DurationVar(&b.Window, "window", time.Second, "how long each number of channels is kept busy")
	f.StringVar(&b.docs, "docs", "", "directory of benchmarks.md and evaluation.md; bench rewrites their sections")
	return c
}

// studyCommand sweeps parameters of which bench measures only a few values.
func (a *app) studyCommand() *cobra.Command {
	var b benchFlags
	var s bench.Study
	var sizes, patterns []string
	c := &cobra.Command{
		Use:   "study",
		Short: "Sweep methods, policies, sizes, patterns, absent pages and links",
		Long: `study starts its own pfds, one for each link, and measures writes or reads for
every combination of the values in the flags' lists. Separate values by commas. -o csv
prints a line for each combination; --dir writes every sample, pictures and a report.`,
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
	f.StringSliceVar(&patterns, "patterns", []string{"sequential", "strided", "random", "zipf"}, "order in which memory is accessed")
	f.Float64SliceVar(&s.Probabilities, "probabilities", []float64{0, 0.05, 0.2, 0.5, 1}, "probability that a page of the destination is absent")
	f.DurationSliceVar(&s.Delays, "link-delays", []time.Duration{0}, "delay of each frame between the nodes (pfd --link-delay)")
	f.Float64SliceVar(&s.Losses, "link-losses", []float64{0}, "probability that a frame is lost (pfd --link-loss)")
	f.BoolVar(&s.Read, "read", false, "reads instead of writes")
	return c
}

// besideThis returns the path of a program in this program's directory.
func besideThis(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name // found in PATH, or the error of the start names it
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
	if b.dir != "" { // an error comes before minutes of measurements
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
