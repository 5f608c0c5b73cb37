package main

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/exanet/pfd/internal/picture"
	"github.com/exanet/pfd/trace/probe"
)

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
