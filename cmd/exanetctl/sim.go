package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/sim/scenario"
)

// simulate are the flags of sim run.
type simulate struct {
	seed     string
	seeds    string
	set      []string
	vary     []string
	plot     string
	timeline int
	perfetto string
	log      string
	queues   string
}

func (a *app) simCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "sim",
		Short: "Run simulated machines of up to 4096 nodes",
		Long: `sim runs the machines and the driver of pfd under a simulated clock, on networks of up
to 4096 nodes, as a file describes them (docs/simulator.md), and checks every byte. It
needs no daemon.`,
	}
	c.AddCommand(a.simRunCommand(), a.simListCommand(), a.simShowCommand(), a.simShrinkCommand())
	return c
}

func (a *app) simRunCommand() *cobra.Command {
	o := simulate{timeline: -1}
	c := &cobra.Command{
		Use:   "run FILE|NAME",
		Short: "Run a scenario and check every transfer",
		Long: `run runs a scenario: a TOML file, or one that comes with the program (exanetctl sim
list). Exit code 0: every transfer ended, and every byte was in its place. Exit code 1: a
violation; its text names the seed. Exit code 2: the file describes no scenario. The same
scenario and seed have the same result, to the byte. -o csv prints one line for each
transfer, with --seeds or --vary one for each run.`,
		Example: `  exanetctl sim run incast-16
  exanetctl sim run one-hop --timeline 0
  exanetctl sim run my.toml --seeds 1-100 --set driver.policy=p1
  exanetctl sim run one-hop --vary workload.0.absent=0.1,0.5,1 --plot out.svg`,
		Args: wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error { return a.simRun(c.Context(), args[0], &o) },
	}
	f := c.Flags()
	f.StringVar(&o.seed, "seed", "", "seed (default that of the file)")
	f.StringVar(&o.seeds, "seeds", "", "run each seed of a range, as 1-100, on all processors")
	f.StringArrayVar(&o.set, "set", nil, "set a value of the file, as driver.policy=p1 or workload.0.absent=0.5; can be repeated")
	f.StringArrayVar(&o.vary, "vary", nil, "run with each of several values, as workload.0.absent=0.05,0.1,0.5; can be repeated: every combination runs")
	f.StringVar(&o.plot, "plot", "", "with --vary, draw the median times as SVG into this file: over the first --vary, with a line for each combination of the others")
	f.IntVar(&o.timeline, "timeline", -1, "show the events of this transfer, counted from 0")
	f.StringVar(&o.perfetto, "perfetto", "", "write all events to this file, for the Perfetto viewer (ui.perfetto.dev)")
	f.StringVar(&o.log, "log", "", "write all events to this file, one a line")
	f.StringVar(&o.queues, "queues", "", "write the levels of the links' queues to this file as CSV: a line for each change")
	return c
}

func (a *app) simListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios that come with the program",
		Args:  maxArgs(0),
		RunE: func(*cobra.Command, []string) error {
			list := scenario.ReadyOnes()
			if a.wantJSON() {
				return a.printJSON(struct {
					Version   int              `json:"version"`
					Scenarios []scenario.Ready `json:"scenarios"`
				}{control.Version, list})
			}
			t := a.table("NAME", "ABOUT")
			for _, r := range list {
				t.add(r.Name, r.About)
			}
			return t.flush()
		},
	}
}

func (a *app) simShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show FILE|NAME",
		Short:   "Print a scenario's file",
		Example: "  exanetctl sim show incast-16 >mine.toml",
		Args:    wantArgs(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := readScenario(args[0])
			if errors.Is(err, os.ErrNotExist) {
				text, err = scenario.ReadyText(args[0])
			}
			if err != nil {
				return usagef("%w", err)
			}
			return a.println(strings.TrimSpace(string(text)))
		},
	}
}

func (a *app) simShrinkCommand() *cobra.Command {
	var o simulate
	c := &cobra.Command{
		Use:   "shrink FILE|NAME",
		Short: "Find the smallest part of a scenario that still fails",
		Long: `shrink takes transfers, injections, nodes and bytes away from a scenario that fails, as
long as it fails without them, and writes the rest to standard output as a scenario's file.
Exit code 1: the scenario does not fail.`,
		Example: `  exanetctl sim shrink failing.toml >small.toml`,
		Args:    wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := simFile(args[0], &o)
			if err != nil {
				return err
			}
			small, violation, err := scenario.Shrink(c.Context(), f)
			switch {
			case err != nil:
				return err
			case small == nil:
				return fmt.Errorf("scenario %s does not fail with seed %d: there is nothing to shrink", args[0], f.Seed)
			}
			text, err := small.Text()
			if err != nil {
				return err
			}
			return a.println(fmt.Sprintf("# %v\n%s", violation, strings.TrimSpace(string(text))))
		},
	}
	c.Flags().StringVar(&o.seed, "seed", "", "seed (default that of the file)")
	c.Flags().StringArrayVar(&o.set, "set", nil, "set a value of the file, as for sim run")
	return c
}

// readScenario returns the text of a file, "-" of standard input, or of the first bytes that are more than
// a scenario may have.
func readScenario(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, scenario.MaxFile+1))
	}
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, scenario.MaxFile+1))
}

func openRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a pipe does not block
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is no regular file: `-` is standard input", name), f.Close())
	}
	return f, nil
}

// simFile returns a scenario by the name of its file or its own, with the flags' changes.
func simFile(name string, o *simulate, more ...string) (*scenario.File, error) {
	text, err := readScenario(name)
	if errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(name, "/.") {
		text, err = scenario.ReadyText(name)
	}
	if err != nil {
		return nil, usagef("%w", err)
	}
	for _, s := range append(slices.Clone(o.set), more...) {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usagef("--set %s: want KEY=VALUE, as driver.policy=p1", s)
		}
		if text, err = scenario.Set(text, key, value); err != nil {
			return nil, usagef("--set %s: %w", s, err)
		}
	}
	f, err := scenario.Parse(name, text)
	if err != nil {
		return nil, usagef("%w", err)
	}
	for _, rec := range f.Recordings() {
		path := rec
		if !filepath.IsAbs(path) { // beside the scenario's file
			path = filepath.Join(filepath.Dir(name), path)
		}
		if err := loadRecording(f, rec, path); err != nil {
			return nil, usagef("%w", err)
		}
	}
	if o.seed != "" {
		if f.Seed, err = strconv.ParseUint(o.seed, 10, 63); err != nil {
			return nil, usagef("--seed %s: want a number from 0 to 2^63 - 1", o.seed)
		}
	}
	return f, nil
}

func loadRecording(f *scenario.File, name, path string) error {
	in, err := openRegular(path)
	if err != nil {
		return err
	}
	defer in.Close()
	return f.Load(name, in)
}

func (a *app) simRun(ctx context.Context, name string, o *simulate) error {
	f, err := simFile(name, o)
	if err != nil {
		return err
	}
	if o.timeline < -1 {
		return usagef("--timeline %d: transfers are counted from 0", o.timeline)
	}
	if o.seeds != "" || len(o.vary) > 0 {
		if o.seeds != "" && o.seed != "" || o.timeline >= 0 || o.perfetto != "" || o.log != "" || o.queues != "" {
			return usagef("--seeds and --vary run several times: --timeline, --perfetto, --log and --queues are of one run, and --seed is not with --seeds")
		}
		return a.simMany(ctx, name, o)
	}
	if o.plot != "" {
		return usagef("--plot draws what --vary varies: add --vary KEY=VALUES")
	}
	var watches []func(*scenario.Event)
	var ends []func() error
	if o.timeline >= 0 {
		to := a.out
		if a.wantJSON() {
			to = a.err
		}
		watches = append(watches, func(e *scenario.Event) {
			if e.Transfer == o.timeline {
				fmt.Fprintln(to, e)
			}
		})
		ends = append(ends, func() error { return outputError(line(to)) })
	}
	write := func(file string, start func(w io.Writer) func() error) error {
		if file == "" {
			return nil
		}
		to, err := outfile.Open(file, outfile.Options{Mode: 0o644})
		if err != nil {
			return err
		}
		end := start(to)
		ends = append(ends, func() error { return errors.Join(end(), to.Close()) })
		return nil
	}
	if err := write(o.perfetto, func(w io.Writer) func() error {
		p := scenario.NewPerfetto(w)
		watches = append(watches, p.Add)
		return p.Close
	}); err != nil {
		return err
	}
	if err := write(o.log, func(w io.Writer) func() error {
		b := bufio.NewWriter(w)
		watches = append(watches, func(e *scenario.Event) { fmt.Fprintln(b, e) })
		return b.Flush
	}); err != nil {
		return err
	}
	var options scenario.Options
	if err := write(o.queues, func(w io.Writer) func() error {
		b := bufio.NewWriter(w)
		fmt.Fprintln(b, "ns,from,to,queued,waiting")
		options.Queues = func(l *scenario.Level) { fmt.Fprintf(b, "%d,%d,%d,%d,%d\n", l.At, l.From, l.To, l.Queued, l.Waiting) }
		return b.Flush
	}); err != nil {
		return err
	}
	if len(watches) > 0 {
		options.Watch = func(e *scenario.Event) {
			for _, w := range watches {
				w(e)
			}
		}
	}
	r, err := scenario.Run(ctx, f, options)
	if r != nil && o.timeline >= r.Transfers {
		err = errors.Join(err, usagef("--timeline %d: the transfers are 0 to %d", o.timeline, r.Transfers-1))
	}
	for _, end := range ends {
		err = errors.Join(err, end())
	}
	if r == nil {
		return err
	}
	if perr := a.printSim(r, err); perr != nil {
		return perr
	}
	if errors.Is(err, scenario.ErrViolation) {
		return fmt.Errorf("scenario %s, seed %d: %w: exanetctl sim shrink %s --seed %d finds the smallest part that fails", name, f.Seed, err, name, f.Seed)
	}
	return err
}

// line ends a block of text.
func line(w io.Writer) error {
	_, err := fmt.Fprintln(w)
	return err
}

// simulated is the JSON of sim run.
type simulated struct {
	Version int     `json:"version"`
	Error   *string `json:"error"` // the violation
	*scenario.Report
}

func jsonOf(r *scenario.Report, err error) simulated {
	v := simulated{Version: control.Version, Report: r}
	if err != nil {
		text := err.Error()
		v.Error = &text
	}
	return v
}

func (a *app) printSim(r *scenario.Report, failed error) error {
	if a.wantJSON() {
		return a.printJSON(jsonOf(r, failed))
	}
	if a.format == formatCSV {
		t := a.table("TRANSFER", "WORKLOAD", "READ", "FROM", "TO", "BYTES", "START us", "TOOK us", "STATUS")
		for i, d := range r.Done {
			start, took, status := "-", "-", "-"
			if d.BeginNS > 0 {
				start = microseconds(d.BeginNS)
			}
			if d.EndNS >= 0 {
				took, status = microseconds(d.EndNS-d.BeginNS), strconv.Itoa(int(d.Status))
			}
			t.add(i, d.Kind, d.Read, d.From, d.To, d.Size, start, took, status)
		}
		return t.flush()
	}
	t := a.table("SIMULATION", fmt.Sprintf("%s, %s", r.Network, plural(r.Nodes, "node")))
	ended := fmt.Sprintf("%d of %d completed", r.Completed, r.Transfers)
	for _, c := range r.Failed {
		ended += fmt.Sprintf(", %d failed with status %d", c.Transfers, c.Status)
	}
	if r.Unfinished > 0 {
		ended += fmt.Sprintf(", %d have not ended", r.Unfinished)
	}
	checked := "every byte"
	if !r.Content {
		checked = "places and marks of all that was written (more than 64 nodes or 256 MiB have no content)"
	}
	t.add("seed", r.Seed)
	t.add("transfers", ended)
	t.add("checked", checked)
	t.add("simulated time", scenario.Duration(r.EndNS))
	t.add("events, frames", fmt.Sprintf("%d, %d", r.Events, r.Frames))
	t.add("digest", r.Digest)
	if err := t.flush(); err != nil {
		return err
	}
	if err := a.println(); err != nil {
		return err
	}
	t = a.table("WORKLOAD", "TRANSFERS", "MiB", "Gb/s", "P50 us", "P90 us", "P99 us", "MAX us")
	for i := range r.Groups {
		g := &r.Groups[i]
		t.add(g.Kind, g.Transfers, fmt.Sprintf("%.2f", float64(g.Bytes)/(1<<20)), fmt.Sprintf("%.2f", g.Rate()/1e9), microseconds(g.P50NS), microseconds(g.P90NS), microseconds(g.P99NS), microseconds(g.MaxNS))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if len(r.Links) > 0 {
		if err := a.println(); err != nil {
			return err
		}
		t = a.table("LINK", "FRAMES", "MiB", "BUSY", "QUEUED", "STOPPED us", "WAITING", "PAUSED us")
		for i := range r.Links[:min(len(r.Links), 8)] {
			l := &r.Links[i]
			t.add(fmt.Sprintf("%d to %d", l.From, l.To), l.Frames, fmt.Sprintf("%.2f", float64(l.Bytes)/(1<<20)),
				fmt.Sprintf("%.0f%%", 100*float64(l.BusyNS)/float64(max(r.EndNS, 1))), l.Highest, microseconds(l.StoppedNS), l.Waiting, microseconds(l.PausedNS))
		}
		if err := t.flush(); err != nil {
			return err
		}
		if more := len(r.Links) - 8; more > 0 {
			if err := a.remark("%s more, less busy: -o json", plural(more, "link")); err != nil {
				return err
			}
		}
	}
	if err := a.println(); err != nil {
		return err
	}
	t = a.table("COUNTER", "VALUE")
	for _, c := range r.Counters {
		t.add(c.Name, c.Value)
	}
	return t.flush()
}
