package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/exanet/pfd/trace/probe"
)

// maxRecordLine bounds a line of a recording (ours): an event has some 600 bytes.
const maxRecordLine = 64 << 10

// oneFile wants the name of a file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("want `%s`", useLine(cmd))
	}
	return nil
}

func (a *app) traceRecord(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "record FILE",
		Short: "Write each fault into a file, a line of JSON each, until interrupted",
		Args:  oneFile,
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
		Use:   "report FILE",
		Short: "Summarize a recording; with --svg draw a stacked bar for each fault",
		Args:  oneFile,
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			list, err := readEvents(f)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if svg != "" {
				if err := os.WriteFile(svg, drawEvents(list), 0o600); err != nil {
					return err
				}
			}
			return a.summarize(list)
		},
	}
	c.Flags().StringVar(&svg, "svg", "", "file for the picture")
	return c
}

// readEvents reads a recording.
func readEvents(r io.Reader) ([]probe.Event, error) {
	var list []probe.Event
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxRecordLine)
	for s.Scan() {
		var e probe.Event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d is no fault of `trace record`: %w", len(list)+1, err)
		}
		list = append(list, e)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(list)+1, err)
	}
	return list, nil
}

// summarize prints the stages' exact percentiles.
func (a *app) summarize(list []probe.Event) error {
	t := a.table("STAGE", "COUNT", "P50_US", "P99_US", "MAX_US")
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
		at := func(percent int) string { return micros(ns[max((len(ns)*percent+99)/100, 1)-1]) }
		t.add(name, len(ns), at(50), at(99), at(100))
	}
	return t.flush()
}

// stageColours are the bars', in the stages' order.
var stageColours = []string{"#9ecae1", "#4292c6", "#08519c", "#fdd0a2", "#fdae6b", "#e6550d", "#a63603", "#74c476", "#238b45", "#bcbddc"}

// maxBars bounds the faults of a picture (ours): the first ones.
const maxBars = 1000

// drawEvents draws a stacked bar for each fault, and what the colours mean.
func drawEvents(list []probe.Event) []byte {
	const bar, height, left, top = 3, 400, 70, 40
	list = list[:min(len(list), maxBars)]
	var most uint64 = 1
	for _, e := range list {
		most = max(most, e.TotalNS)
	}
	stages := probe.StageNames()
	stages = stages[:len(stages)-1]
	width := max(left+bar*len(list)+20, left+90*len(stages))
	b := fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, top+height+20)
	for i, s := range stages {
		b = fmt.Appendf(b, `<rect x="%d" y="8" width="10" height="10" fill="%s"/><text x="%d" y="17">%s</text>`+"\n", left+90*i, stageColours[i], left+90*i+14, s)
	}
	for i := range 5 {
		y := top + height - height*i/4
		b = fmt.Appendf(b, `<text x="4" y="%d">%s us</text><line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ccc"/>`+"\n", y+4, micros(int64(most)*int64(i)/4), left-4, y, width, y)
	}
	for i, e := range list {
		y := float64(top + height)
		for j, s := range stages {
			if ns, ok := e.StagesNS[s]; ok && ns > 0 {
				h := float64(ns) / float64(most) * height
				y -= h
				b = fmt.Appendf(b, `<rect x="%d" y="%.2f" width="%d" height="%.2f" fill="%s"/>`, left+bar*i, y, bar-1, h, stageColours[j])
			}
		}
		b = append(b, '\n')
	}
	return append(b, "</svg>\n"...)
}
