package main

import (
	"fmt"
	"math/bits"

	"github.com/exanet/pfd/trace/probe"
)

// stageColours are the bars', in the stages' order.
var stageColours = []string{"#9ecae1", "#4292c6", "#08519c", "#fdd0a2", "#fdae6b", "#e6550d", "#a63603", "#74c476", "#238b45", "#bcbddc"}

// The picture's measures (ours).
const (
	maxBars    = 1000 // faults that are drawn: the first ones
	faultWidth = 3
	barHeight  = 400
	left, top  = 84, 40

	heatColumns = 200 // of time
	heatWidth   = 5
	heatHeight  = 8
	heatSteps   = 4 // rows a power of two
)

// drawEvents draws a stacked bar for each fault and what the colours mean (PART's
// figure 8), and under it how many faults took how long, over time.
func drawEvents(list []probe.Event) []byte {
	stages := probe.StageNames()
	stages = stages[:len(stages)-1]
	bars := list[:min(len(list), maxBars)]
	heat, heatRoom := heatMap(list, top+barHeight+60)
	width := max(left+faultWidth*len(bars)+20, left+90*len(stages), left+heatColumns*heatWidth+20)
	b := fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, top+barHeight+40+heatRoom)
	b = append(b, sideways("time of a fault, us", top+barHeight/2)...)
	b = fmt.Appendf(b, `<text x="%d" y="%d">%d faults in the order in which they began, a bar each</text>`+"\n", left, top+barHeight+18, len(bars))
	for i, s := range stages {
		b = fmt.Appendf(b, `<rect x="%d" y="8" width="10" height="10" fill="%s"/><text x="%d" y="17">%s</text>`+"\n", left+90*i, stageColours[i], left+90*i+14, s)
	}
	var most uint64 = 1
	for _, e := range bars {
		most = max(most, e.TotalNS)
	}
	for i := range 5 {
		y := top + barHeight - barHeight*i/4
		b = fmt.Appendf(b, `<text x="%d" y="%d" text-anchor="end">%s</text><line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ccc"/>`+"\n", left-8, y+4, micros(int64(most)*int64(i)/4), left-4, y, width, y)
	}
	for i, e := range bars {
		y := float64(top + barHeight)
		for j, s := range stages {
			if ns, ok := e.StagesNS[s]; ok && ns > 0 {
				h := float64(ns) / float64(most) * barHeight
				y -= h
				b = fmt.Appendf(b, `<rect x="%d" y="%.2f" width="%d" height="%.2f" fill="%s"/>`, left+faultWidth*i, y, faultWidth-1, h, stageColours[j])
			}
		}
		b = append(b, '\n')
	}
	return append(append(b, heat...), "</svg>\n"...)
}

// sideways is the name of a vertical axis whose middle is at y.
func sideways(name string, y int) []byte {
	return fmt.Appendf(nil, `<text x="%d" y="14" text-anchor="middle" transform="rotate(-90)">%s</text>`+"\n", -y, name)
}

// heatRow gives the row of a time: heatSteps a power of two.
func heatRow(ns uint64) int {
	e := bits.Len64(ns | 1)
	return e*heatSteps + int(ns<<(64-e)<<1>>62)
}

// heatMap draws, from y on, a cell for each part of the time and each range of totals,
// the darker the more faults there are; room is the height that it takes.
func heatMap(list []probe.Event, y int) (b []byte, room int) {
	if len(list) == 0 {
		return nil, 0
	}
	first, last := list[0].StartNS, list[0].StartNS
	low, high := heatRow(list[0].TotalNS), heatRow(list[0].TotalNS)
	for _, e := range list {
		first, last = min(first, e.StartNS), max(last, e.StartNS)
		low, high = min(low, heatRow(e.TotalNS)), max(high, heatRow(e.TotalNS))
	}
	cells := make([][heatColumns]int, high-low+1)
	most := 0
	for _, e := range list {
		column := int(float64(e.StartNS-first) / float64(max(last-first, 1)) * (heatColumns - 1))
		n := &cells[heatRow(e.TotalNS)-low][min(column, heatColumns-1)]
		*n++
		most = max(most, *n)
	}
	bottom := y + heatHeight*len(cells)
	for row, columns := range cells {
		at := bottom - heatHeight*(row+1)
		if (row+low)%heatSteps == 0 {
			from := int64(1) << max((row+low)/heatSteps-1, 0)
			b = fmt.Appendf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, at+heatHeight, micros(from))
		}
		for column, n := range columns {
			if n > 0 {
				b = fmt.Appendf(b, `<rect class="heat" x="%d" y="%d" width="%d" height="%d" fill="#a63603" fill-opacity="%.2f"/>`,
					left+column*heatWidth, at, heatWidth, heatHeight, .15+.85*float64(n)/float64(most))
			}
		}
		b = append(b, '\n')
	}
	b = append(b, sideways("time of a fault, us", (y+bottom)/2)...)
	b = fmt.Appendf(b, `<text x="%d" y="%d">%d faults over %.3f s; the darker a cell, the more (up to %d)</text>`+"\n", left, bottom+16, len(list), float64(last-first)/1e9, most)
	return b, bottom + 20 - y + 40
}
