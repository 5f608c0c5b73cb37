package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/sockets"
	"github.com/exanet/pfd/trace/probe"
)

// traceCommand controls the eBPF probe (docs/tracing.md).
func (a *app) traceCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "trace COMMAND",
		Short: "Trace the faults of a running pfd with eBPF",
		Long: `trace measures the stages of each fault. eBPF programs at pfd's probe point keep
histograms, counters and the slowest faults in pinned maps, which bpftool and cat can
read, too (docs/tracing.md). trace needs root, or CAP_BPF and CAP_PERFMON.`,
		RunE: orHelp,
		Args: cobra.ArbitraryArgs,
	}
	c.PersistentFlags().StringVar(&dir, "bpffs", probe.DefaultDir, "directory of a bpffs for the pinned programs and maps")
	c.AddCommand(a.traceOn(&dir), a.traceOff(&dir), a.traceStatus(&dir), a.traceLatency(&dir), a.traceFaults(&dir),
		a.traceRecord(&dir), a.traceReport(), a.traceClean(&dir), a.tracePoint())
	return c
}

func (a *app) traceOn(dir *string) *cobra.Command {
	var programs, sources []string
	c := &cobra.Command{
		Use:   "on",
		Short: "Attach to every pfd of a program file, also those that start later",
		Args:  maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(programs) == 0 {
				program, err := a.pfdProgram(cmd)
				if err != nil {
					return err
				}
				programs = []string{program}
			}
			notes, err := probe.On(probe.Start{Dir: *dir, Programs: programs, Sources: sources})
			for _, n := range notes {
				fmt.Fprintln(a.err, n)
			}
			return err
		},
	}
	c.Flags().StringSliceVar(&sources, "sources", nil, "attach only these: "+strings.Join(probe.SourceNames(), ", ")+" (default all)")
	c.Flags().StringSliceVar(&programs, "program", nil, "pfd's program file (default: that of the pfd at --socket); if another process serves its nodes, add that program (exanetctl) after a comma")
	return c
}

func (a *app) tracePoint() *cobra.Command {
	var program string
	var event bool
	c := &cobra.Command{
		Use:   "point",
		Short: "Show where pfd's probe point is, for other tracers",
		Args:  maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if program == "" {
				if program, err = a.pfdProgram(cmd); err != nil {
					return err
				}
			}
			line, err := probe.Place(program, event)
			if err == nil {
				_, err = fmt.Fprintln(a.out, line)
			}
			return err
		},
	}
	c.Flags().StringVar(&program, "program", "", "pfd's program file (default: that of the pfd at --socket)")
	c.Flags().BoolVar(&event, "event", false, "print a line for the kernel's uprobe_events")
	return c
}

// pfdProgram returns the path of the running program of the pfd at the socket, in /proc: the
// file at its original path may have been replaced.
func (a *app) pfdProgram(cmd *cobra.Command) (string, error) {
	client, err := a.client()
	if err != nil {
		return "", err
	}
	if _, err := client.Status(cmd.Context()); err != nil {
		return "", err
	}
	pid, err := listener(cmd.Context(), client.Socket())
	if err != nil {
		return "", err
	}
	exe := fmt.Sprintf("/proc/%d/exe", pid)
	path, err := os.Readlink(exe)
	if err != nil {
		who := fmt.Sprintf("process %d", pid)
		if pid == 0 {
			who = "in another pid namespace"
		}
		return "", fmt.Errorf("program of pfd (%s): %w: name its file with --program", who, err)
	}
	if gone := strings.TrimSuffix(path, " (deleted)"); gone != path {
		fmt.Fprintf(a.err, "exanetctl: %s was replaced while pfd runs: only the running pfd is traced, not those that start from the new file\n", gone)
	}
	return exe, nil
}

// listener returns the number of the process that listens at a socket, in this pid namespace.
// The number in pfd's status is that of pfd's own namespace.
func listener(ctx context.Context, socket string) (int, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var cred *unix.Ucred
	if err := sockets.Control(c.(*net.UnixConn), func(fd int) (err error) { cred, err = sockets.Peer(fd); return err }); err != nil {
		return 0, fmt.Errorf("process that listens at %s: %w", socket, err)
	}
	return int(cred.Pid), nil
}

func (a *app) traceOff(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "off",
		Short: "Detach and remove the pinned maps with all measurements",
		Args:  maxArgs(0),
		RunE:  func(*cobra.Command, []string) error { return probe.Off(*dir) },
	}
}

func (a *app) traceClean(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "Remove pinned files, also of another version or a killed trace",
		Args:  maxArgs(0),
		RunE: func(*cobra.Command, []string) error {
			err := probe.Off(*dir)
			if errors.Is(err, probe.ErrOff) {
				return nil
			}
			return err
		},
	}
}

// tracer calls f with the pinned maps.
func (a *app) tracer(dir string, f func(*probe.Maps) error) error {
	m, err := probe.Open(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	return f(m)
}

// traced reads the measurements from the pinned maps, or from a pfd that keeps its own.
func (a *app) traced(cmd *cobra.Command, dir string) (r *probe.Report, err error) {
	err = a.tracer(dir, func(m *probe.Maps) error {
		r, err = m.Report()
		return err
	})
	if !errors.Is(err, probe.ErrOff) {
		return r, err
	}
	client, cerr := a.client()
	if cerr != nil {
		return nil, err
	}
	text, cerr := client.Trace(cmd.Context())
	if cerr != nil {
		return nil, err
	}
	return r, json.Unmarshal(text, &r)
}

func (a *app) traceStatus(dir *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the attached sources, the traced processes and the counters",
		Args:  maxArgs(0),
		RunE: a.watched(func(cmd *cobra.Command, _ []string) error {
			r, err := a.traced(cmd, *dir)
			if err != nil {
				return err
			}
			if a.wantJSON() {
				return a.printJSON(r.Status)
			}
			return a.showTrace(r.Status)
		}),
	}
	a.watchFlag(c)
	return c
}

func (a *app) showTrace(s *probe.Status) error {
	var programs []string
	for _, p := range s.Programs {
		if p.Replaced {
			p.File += ": replaced, a pfd that starts now is not traced: run `exanetctl trace on` again"
		}
		programs = append(programs, p.File)
	}
	t := a.table("PROGRAM", strings.Join(programs, ", "))
	for _, src := range s.Sources {
		state := "attached"
		switch {
		case !src.Attached:
			state = "not attached: " + src.Reason
		case src.Nop != 0:
			state = fmt.Sprintf("attached, at the NOP of %d bytes", src.Nop)
		}
		t.add("source "+src.Name, state)
	}
	for _, w := range s.Watched {
		state := "alive"
		if !w.Alive {
			state = "gone"
		}
		t.add(fmt.Sprintf("pfd %d", w.PID), fmt.Sprintf("%d batches, %s", w.Batches, state))
	}
	for _, name := range probe.CounterNames() {
		if remedy := remedies[name]; remedy != "" && s.Counters[name] > 0 {
			t.add(name, fmt.Sprintf("%d: %s", s.Counters[name], remedy))
			continue
		}
		t.add(name, s.Counters[name])
	}
	return t.flush()
}

// remedies explain counters that should be 0.
var remedies = map[string]string{
	"bad_records":   "records in an unknown format were omitted: check that the traced program is a pfd",
	"unreadable":    "records that could not be read were omitted: run `exanetctl trace on` again",
	"lone":          "refused blocks with unknown faults: another process has the faults, or they began before `trace on`",
	"crowded":       "faults of blocks with more than eight faults were omitted from the histograms",
	"full":          "entries were omitted because a map was full: run `exanetctl trace off` and `on`",
	"stamp_bad":     "a process's time stamp of the doorbell or of the end is impossible: `ring` or `seen` was omitted",
	"events_lost":   "these events were not read in time: reduce them with `trace faults --slower`; the histograms include them",
	"kernel_missed": "page-ins whose time in the kernel is unknown were omitted from `kernel_*`",
}

// noTraced is the text in place of an empty table.
const noTraced = "no fault was traced since `exanetctl trace on`: make some with `exanetctl write --dst absent`; `exanetctl trace status` shows the attached sources"

func (a *app) traceLatency(dir *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "latency",
		Short: "Show the time of each stage by method and kind",
		Args:  maxArgs(0),
		RunE: a.watched(func(cmd *cobra.Command, _ []string) error {
			r, err := a.traced(cmd, *dir)
			if err != nil {
				return err
			}
			if a.wantJSON() {
				return a.printJSON(map[string]any{"latency": r.Latency})
			}
			t := a.table("METHOD", "KIND", "STAGE", "COUNT", "P50_US", "P90_US", "P99_US", "MAX_US", "MEAN_US", "PREEMPTED_US", "SLEPT_US")
			t.spare = []string{"SLEPT_US", "PREEMPTED_US", "P90_US", "MAX_US", "MEAN_US"}
			for _, l := range r.Latency {
				mean := func(sum uint64) quantity { return micros(int64(sum / max(l.Count, 1))) }
				t.add(l.Method, l.Kind, l.Stage, l.Count, micros(int64(l.P50NS)), micros(int64(l.P90NS)), micros(int64(l.P99NS)), micros(int64(l.MaxNS)),
					mean(l.SumNS), mean(l.PreemptedNS), mean(l.SleptNS))
			}
			if len(t.rows) == 0 {
				return a.none(t, noTraced, "")
			}
			return t.flush()
		}),
	}
	a.watchFlag(c)
	return c
}

func (a *app) traceFaults(dir *string) *cobra.Command {
	var node, pdid uint32
	var kind string
	var slower time.Duration
	var slowest bool
	c := &cobra.Command{
		Use:   "faults",
		Short: "Show each fault with its stages as it happens, until interrupted",
		Args:  maxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			want := probe.Filter{Kind: kind, SlowerNS: uint64(max(slower, 0))}
			if cmd.Flags().Changed("node") {
				want.Node = &node
			}
			if cmd.Flags().Changed("pdid") {
				want.PDID = &pdid
			}
			return a.tracer(*dir, func(m *probe.Maps) error {
				if slowest {
					return a.showSlowest(m)
				}
				if err := a.beginTraced(); err != nil {
					return err
				}
				err := m.Events(cmd.Context(), want, a.printTraced)
				if errors.Is(err, fs.ErrExist) {
					return fmt.Errorf("%w: end that one first", err)
				}
				return err
			})
		},
	}
	f := c.Flags()
	f.Uint32Var(&node, "node", 0, "only faults of this node")
	completeFlag(c, "node", a.nodeWords())
	f.Uint32Var(&pdid, "pdid", 0, "only faults of this protection domain")
	f.StringVar(&kind, "kind", "", "only faults of this kind: "+strings.Join(probe.Kinds(), ", "))
	f.DurationVar(&slower, "slower", 0, "only faults that took at least this time, such as 1ms")
	f.BoolVar(&slowest, "slowest", false, "show the 64 slowest faults so far instead")
	return c
}

func (a *app) showSlowest(m *probe.Maps) error {
	list, err := m.Slowest()
	if err != nil {
		return err
	}
	if a.wantJSON() {
		return a.printJSON(map[string]any{"faults": list})
	}
	if len(list) == 0 {
		return a.none(a.tracedFaults().table, noTraced, "")
	}
	if err := a.beginTraced(); err != nil {
		return err
	}
	for _, e := range list {
		if err := a.printTraced(e); err != nil {
			return err
		}
	}
	return nil
}

// tracedFaults returns the table of traced faults with a column for each stage.
func (a *app) tracedFaults() *stream {
	head := []string{"NODE/PD", "PAGE", "SIDE", "METHOD", "KIND", "OUTCOME", "TRANSFER"}
	s := &stream{formats: strings.Fields("%-8v %-14v %-11v %-9v %-10v %-9v %-16v")}
	spare := []string{"TRANSFER", "SIDE", "METHOD"}
	for _, name := range probe.StageNames() {
		head, s.formats = append(head, strings.ToUpper(name)), append(s.formats, "%9v")
		if name != "total" {
			spare = append(spare, strings.ToUpper(name))
		}
	}
	s.table = a.table(head...)
	s.spare = spare
	return s
}

func (a *app) beginTraced() error {
	if a.wantJSON() {
		return nil
	}
	return a.tracedFaults().begin()
}

// printTraced prints a fault: a line of JSON, or its stages in microseconds.
func (a *app) printTraced(e probe.Event) error {
	if a.wantJSON() {
		return a.printJSON(e)
	}
	cells := []any{
		fmt.Sprintf("%d/%d", e.Node, e.PDID), fmt.Sprintf("%#x", e.Page), e.Side, e.Method, e.Kind, e.Outcome,
		fmt.Sprintf("%d:%d.%d", e.Source, e.Transaction, e.Sequence),
	}
	for _, s := range probe.StageNames() {
		ns, ok := e.StagesNS[s]
		if s == "total" {
			ns, ok = int64(e.TotalNS), true
		}
		if !ok {
			ns = -1
		}
		cells = append(cells, micros(ns))
	}
	return a.tracedFaults().print(cells)
}
