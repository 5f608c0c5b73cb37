package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/percentile"
	"github.com/exanet/pfd/internal/plaintext"
	"github.com/exanet/pfd/trace/probe"
)

// maxRecordLine bounds a line of a recording (ours): an event has some 600 bytes.
const maxRecordLine = 64 << 10

// files wants the names of some files, max at most.
func files(max int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < 1 || len(args) > max {
			return usagef("want `%s`", useLine(cmd))
		}
		return nil
	}
}

func (a *app) traceRecord(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "record FILE",
		Short: "Write each fault into a file, a line of JSON each, until interrupted",
		Args:  files(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.tracer(*dir, func(m *probe.Maps) error {
				f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return err
				}
				w := bufio.NewWriter(f)
				enc := json.NewEncoder(w)
				err = m.Events(cmd.Context(), probe.Filter{}, func(e probe.Event) error { return enc.Encode(e) })
				return errors.Join(err, w.Flush(), f.Close())
			})
		},
	}
}

func (a *app) traceReport() *cobra.Command {
	var svg string
	c := &cobra.Command{
		Use:   "report FILE [FILE2]",
		Short: "Summarize recordings; with --svg draw each fault and the times over time",
		Long: `report summarizes what trace record has written. Of a device in another process or
another machine a recording has one half of each fault: the driver's, or the sender's.
The recordings of both are joined by the block (node, transaction, sequence), and by
lengths of time alone: the two clocks need not agree. What the wire and both machines'
firmware took (raise and resend) is told as one stage, resend.`,
		Args: files(2),
		RunE: func(_ *cobra.Command, args []string) error {
			var recordings [][]probe.Event
			for _, name := range args {
				list, err := readFile(name)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				recordings = append(recordings, list)
			}
			list, lone := joinHalves(recordings)
			if lone > 0 {
				fmt.Fprintf(a.err, "exanetctl: %d halves of faults have no other half in these recordings\n", lone)
			}
			if svg != "" {
				if err := outfile.Write(svg, drawEvents(list)); err != nil {
					return err
				}
			}
			return a.summarize(list)
		},
	}
	c.Flags().StringVar(&svg, "svg", "", "file for the picture")
	return c
}

// blockKey names a block's refusal: its numbers come again, in this order.
type blockKey struct {
	source                uint32
	transaction, sequence uint16
}

func keyOf(e *probe.Event) blockKey { return blockKey{e.Source, e.Transaction, e.Sequence} }

// joinHalves joins the halves of faults, and gives all that are whole or have no other
// half; lone is how many of these there are.
func joinHalves(recordings [][]probe.Event) (list []probe.Event, lone int) {
	senders, joined := map[blockKey][]probe.Event{}, map[blockKey]bool{}
	for _, events := range recordings {
		for i := range events {
			if e := &events[i]; e.Half == probe.HalfSender {
				senders[keyOf(e)] = append(senders[keyOf(e)], *e)
			}
		}
	}
	for _, events := range recordings {
		for i := range events {
			e, k := &events[i], keyOf(&events[i])
			switch e.Half {
			case "": // a sender's half that was told before it was joined is no fault more
				joined[k] = true
			case probe.HalfSender:
				continue
			case probe.HalfDriver:
				if same := senders[k]; len(same) > 0 && joinHalf(e, &same[0]) {
					if len(same) > 1 { // the last one has more faults, perhaps
						senders[k] = same[1:]
					}
					joined[k] = true
				} else {
					lone++
				}
			}
			list = append(list, *e)
		}
	}
	for k, same := range senders {
		if !joined[k] {
			lone += len(same)
			list = append(list, same...)
		}
	}
	slices.SortFunc(list, func(a, b probe.Event) int { return cmp.Compare(a.StartNS, b.StartNS) })
	return list, lone
}

// joinHalf makes a fault whole of what its block's sender saw: what it was away for, and
// the driver did not have it, is resend's. False: it cannot be of this fault.
func joinHalf(e, sender *probe.Event) bool {
	away, ok := sender.StagesNS["resend"]
	var driver int64
	for _, ns := range e.StagesNS {
		driver += ns
	}
	if !ok || driver > away {
		return false
	}
	stages := maps.Clone(sender.StagesNS)
	maps.Copy(stages, e.StagesNS)
	stages["resend"] = away - driver
	e.StagesNS, e.TotalNS, e.Half = stages, sender.TotalNS, ""
	e.Status, e.Again, e.Channel = sender.Status, sender.Again, sender.Channel
	return true
}

func readFile(name string) ([]probe.Event, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readEvents(f)
}

// readEvents reads a recording.
func readEvents(r io.Reader) ([]probe.Event, error) {
	var list []probe.Event
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxRecordLine)
	for s.Scan() {
		var e probe.Event
		line := s.Bytes()
		if len(list) == 0 {
			var err error
			if line, err = plaintext.Text(line); err != nil {
				return nil, err
			}
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d is no fault of `trace record`: %w", len(list)+1, err)
		}
		list = append(list, e)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(list)+1, err)
	}
	return list, nil
}

// summary is a stage of a recording, with exact percentiles.
type summary struct {
	Stage string `json:"stage"`
	Count int    `json:"count"`
	P50NS int64  `json:"p50_ns"`
	P99NS int64  `json:"p99_ns"`
	MaxNS int64  `json:"max_ns"`
}

// summarize prints the stages' percentiles.
func (a *app) summarize(list []probe.Event) error {
	stages := []summary{}
	for _, name := range probe.StageNames() {
		var ns []int64
		for _, e := range list {
			if name == "total" {
				ns = append(ns, int64(e.TotalNS))
			} else if v, ok := e.StagesNS[name]; ok {
				ns = append(ns, v)
			}
		}
		if len(ns) == 0 {
			continue
		}
		slices.Sort(ns)
		stages = append(stages, summary{name, len(ns), percentile.Of(ns, 50), percentile.Of(ns, 99), ns[len(ns)-1]})
	}
	if a.wantJSON() {
		return a.printJSON(map[string]any{"stages": stages})
	}
	t := a.table("STAGE", "COUNT", "P50_US", "P99_US", "MAX_US")
	for _, s := range stages {
		t.add(s.Stage, s.Count, micros(s.P50NS), micros(s.P99NS), micros(s.MaxNS))
	}
	return t.flush()
}
