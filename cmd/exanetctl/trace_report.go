package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/percentile"
	"github.com/exanet/pfd/internal/picture"
	"github.com/exanet/pfd/internal/plaintext"
	"github.com/exanet/pfd/trace/probe"
)

// maxRecordLine bounds a line of a recording, in bytes; an event has some 600. Defined by this
// project.
const maxRecordLine = 64 << 10

func (a *app) traceRecord(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "record FILE",
		Short: "Write each fault as a line of JSON into a file until interrupted",
		Args:  wantArgs(1, 1),
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
		Short: "Summarize recordings; with --svg draw the faults",
		Long: `report summarizes recordings of trace record. If the device is in another process or
machine, a recording has one half of each fault: the driver's or the sender's. report
joins the halves of two recordings by the block (node, transaction, sequence). It uses
only durations, so the two clocks need not agree. The time of the wire and of both
machines' firmware (raise and resend) is one stage, resend.`,
		Args: wantArgs(1, 2),
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
				fmt.Fprintf(a.err, "exanetctl: %d halves of faults have no match in these recordings\n", lone)
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

// blockKey identifies a refused block. Later blocks reuse the numbers; their faults are matched
// in order.
type blockKey struct {
	source                uint32
	transaction, sequence uint16
}

func keyOf(e *probe.Event) blockKey { return blockKey{e.Source, e.Transaction, e.Sequence} }

// joinHalves joins the halves of faults. It returns all faults, and the number of halves
// without a match, which list includes.
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
			case "": // the sender's half of this fault, if recorded, is not another fault
				joined[k] = true
			case probe.HalfSender:
				continue
			case probe.HalfDriver:
				if same := senders[k]; len(same) > 0 && joinHalf(e, &same[0]) {
					if len(same) > 1 { // keep the last one: it may have more faults
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

// joinHalf adds the stages that the block's sender recorded to a fault. The stage resend is the
// time from the refusal to the retransmission less the driver's stages. It returns false if
// the half cannot belong to this fault.
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
			return nil, fmt.Errorf("line %d is not a fault of `trace record`: %w", len(list)+1, err)
		}
		list = append(list, e)
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", len(list)+1, err)
	}
	return list, nil
}

// summary summarizes a stage of a recording, with exact percentiles.
type summary struct {
	Stage string `json:"stage"`
	Count int    `json:"count"`
	P50NS int64  `json:"p50_ns"`
	P99NS int64  `json:"p99_ns"`
	MaxNS int64  `json:"max_ns"`
}

// summarize prints the percentiles of each stage.
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

// stageColours are the colours of the stages in their order.
var stageColours = []color.NRGBA{
	{0x9e, 0xca, 0xe1, 0xff}, {0x42, 0x92, 0xc6, 0xff}, {0x08, 0x51, 0x9c, 0xff}, {0xfd, 0xd0, 0xa2, 0xff}, {0xfd, 0xae, 0x6b, 0xff},
	{0xe6, 0x55, 0x0d, 0xff}, {0xa6, 0x36, 0x03, 0xff}, {0x74, 0xc4, 0x76, 0xff}, {0x23, 0x8b, 0x45, 0xff}, {0xbc, 0xbd, 0xdc, 0xff},
}

// Sizes of the picture. Values are defined by this project.
const (
	maxBars                 = 1000      // only the first faults have bars
	faultWidth              = 0.8       // of a bar; the distance is 1
	eventsWidth, eventsHigh = 1000, 300 // of the axes, in points

	heatColumns = 200 // parts of the time axis
	heatSteps   = 4   // rows per power of two
	heatShades  = 8
)

// drawEvents draws a stacked bar for each fault (PART's figure 8), and below them a heat map of
// the faults' times over time.
func drawEvents(list []probe.Event) []byte {
	return []byte(picture.SVG(eventsWidth, eventsHigh, drawBars(list[:min(len(list), maxBars)]), drawHeat(list)))
}

// drawBars draws a bar for each fault and a colour for each stage.
func drawBars(list []probe.Event) *plot.Plot {
	p := picture.New("", fmt.Sprintf("%d faults in the order in which they began, a bar each", len(list)), "time of a fault, us")
	tops := make([]float64, len(list))
	highest := 0.0
	stages := probe.StageNames()
	for i, stage := range stages[:len(stages)-1] {
		bars := &plotter.Polygon{Color: stageColours[i]}
		for j, e := range list {
			if us := float64(e.StagesNS[stage]) / 1e3; us > 0 {
				bars.XYs = append(bars.XYs, picture.Rectangle(float64(j), tops[j], float64(j)+faultWidth, tops[j]+us))
				tops[j] += us
				highest = max(highest, tops[j])
			}
		}
		p.Legend.Add(stage, bars)
		p.Add(bars)
	}
	picture.Axis(&p.X, 0, max(float64(len(list)), 6)) // so that ticks are whole numbers
	picture.Axis(&p.Y, 0, highest)
	return p
}

// drawHeat draws the heat map: a cell is darker the more faults it contains.
func drawHeat(list []probe.Event) *plot.Plot {
	first, last := uint64(math.MaxUint64), uint64(0)
	for _, e := range list {
		first, last = min(first, e.StartNS), max(last, e.StartNS)
	}
	seconds := max(float64(last-min(first, last)), 1) / 1e9
	type cell struct{ column, row int }
	cells := map[cell]int{}
	low, high, most := math.MaxInt, 0, 0
	for _, e := range list {
		row := int(heatSteps * math.Log2(max(float64(e.TotalNS), 1)))
		at := cell{min(int(float64(e.StartNS-first)/1e9/seconds*heatColumns), heatColumns-1), row}
		cells[at]++
		low, high, most = min(low, row), max(high, row+1), max(most, cells[at])
	}
	p := picture.New("", fmt.Sprintf("time since the first of %d faults, s; the darker a cell, the more (up to %d)", len(list), most), "time of a fault, us")
	from := func(row int) float64 { return math.Exp2(float64(row)/heatSteps) / 1e3 }
	picture.Axis(&p.X, 0, seconds)
	y, _ := picture.Axis(&p.Y, from(min(low, high)), from(high))
	shades := make([]plotter.Polygon, heatShades)
	for column := range heatColumns {
		for row := low; row < high; row++ {
			if n := cells[cell{column, row}]; n > 0 {
				rings := &shades[n*(heatShades-1)/most].XYs
				left := float64(column) * seconds / heatColumns
				*rings = append(*rings, picture.Rectangle(left, y(from(row)), left+seconds/heatColumns, y(from(row+1))))
			}
		}
	}
	for i := range shades {
		shades[i].Color = color.NRGBA{0x7f, 0x27, 0x04, uint8(255 * (i + 2) / (heatShades + 1))}
		p.Add(&shades[i])
	}
	return p
}
