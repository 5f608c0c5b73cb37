// Package picture draws plots as SVG in one look, with gonum.org/v1/plot. It keeps that
// library from the values at which it panics, and draws legends beside the axes, where they
// cover no value.
package picture

import (
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The measures of a picture, in points. Values are defined by this project.
const (
	fontSize  = 10
	margin    = 8
	mostTicks = 13   // labels of a logarithmic axis
	spare     = 1.15 // of a legend and a title, for a viewer whose font is wider
	limit     = 1e18

	logFrom = 20 // an axis whose largest value is so many times the least is logarithmic
)

// Drawable reports whether a picture can show a value: a finite one of at most limit.
func Drawable(v float64) bool { return math.Abs(v) <= limit }

// New returns a plot without values. The labels of the axes say their units.
func New(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding, p.X.Label.Padding, p.Y.Label.Padding = margin, margin/2, margin/2
	p.X.Tick.Length, p.Y.Tick.Length = margin/2, margin/2
	for _, s := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.X.Tick.Label, &p.Y.Label.TextStyle, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		s.Font.Variant, s.Font.Size = "Sans", fontSize
	}
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, 2
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	return p
}

// Rectangle returns a ring of a plotter.Polygon.
func Rectangle(left, bottom, right, top float64) plotter.XYs {
	return plotter.XYs{{X: left, Y: bottom}, {X: left, Y: top}, {X: right, Y: top}, {X: right, Y: bottom}}
}

// Axis makes an axis go from one round value to another, with low and high between them, and
// returns where it shows a value. It is logarithmic if high is far above low: a value without a
// logarithm is then shown at its beginning. A linear axis has 0.
//
// The library's own logarithmic scale panics at 0 and misplaces the axis' label; its own ticks
// can be as few as two.
func Axis(a *plot.Axis, low, high float64) (at func(float64) float64, logarithmic bool) {
	scale := func(v float64) float64 { return v }
	var ticks plot.ConstantTicks
	add := func(v float64, named bool) {
		ticks = append(ticks, plot.Tick{Value: scale(v)})
		if named {
			ticks[len(ticks)-1].Label = strconv.FormatFloat(v, 'g', 6, 64)
		}
	}
	if logarithmic = low > 1/limit && high/low >= logFrom; logarithmic {
		scale = func(v float64) float64 { return math.Log10(max(v, 0)) }
		// Of 1, 3, 10, 30 and so on those from the last that is not above low to the first
		// that is not below high.
		every := 1 + math.Floor((2*math.Log10(high/low)+2)/mostTicks)
		v := 0.0
		for k := 2 * math.Floor(math.Log10(low)); v < high; k++ {
			if v = math.Pow(10, math.Floor(k/2)); math.Mod(k, 2) != 0 {
				v *= 3
			}
			if v <= low {
				ticks = nil
			}
			add(v, math.Mod(k, every) == 0)
		}
	} else {
		low, high = min(0, low), max(0, high, low+1e-9)
		step := math.Pow(10, math.Floor(math.Log10((high-low)/3)))
		for _, m := range []float64{1, 2, 5} {
			if (high-low)/(step*m) <= 6 {
				step *= m
				break
			}
		}
		for i := math.Floor(low / step); i <= math.Ceil(high/step-1e-9); i++ {
			add(i*step, true)
		}
	}
	a.Min, a.Max, a.Tick.Marker = ticks[0].Value, ticks[len(ticks)-1].Value, ticks
	return func(v float64) float64 { return max(scale(v), a.Min) }, logarithmic
}

// SVG draws plots, whose axes are of this size, below one another, with their legends to the
// right of them.
func SVG(width, height vg.Length, plots ...*plot.Plot) string {
	var tile, beside vg.Point // what a plot takes, and a legend
	for _, p := range plots {
		data := p.DataCanvas(draw.Canvas{Rectangle: vg.Rectangle{Max: vg.Point{X: width, Y: height}}}).Size()
		legend := p.Legend.Rectangle(draw.Canvas{}).Size()
		beside.X = max(beside.X, spare*legend.X)
		beside.Y = max(beside.Y, spare*legend.Y)
		tile.X = max(tile.X, 2*width-data.X, spare*p.Title.TextStyle.Width(p.Title.Text))
		tile.Y = max(tile.Y, 2*height-data.Y, beside.Y)
	}
	c := vgsvg.New(tile.X+beside.X+3*margin, (tile.Y+margin)*vg.Length(len(plots))+margin)
	all := draw.New(c)
	all.SetColor(color.White)
	all.Fill(all.Path())
	for i, p := range plots {
		at := vg.Rectangle{Min: vg.Point{X: margin, Y: all.Max.Y - (tile.Y+margin)*vg.Length(i+1)}}
		at.Max = at.Min.Add(tile)
		legend := p.Legend
		p.Legend = plot.NewLegend()
		p.Draw(draw.Canvas{Canvas: c, Rectangle: at})
		legend.Draw(draw.Canvas{Canvas: c, Rectangle: at.Add(vg.Point{X: tile.X + margin})})
	}
	var b strings.Builder
	_, _ = c.WriteTo(&b) // which a strings.Builder never fails
	_, svg, _ := strings.Cut(b.String(), "-->\n")
	// A page has the picture in it, and perhaps not its fonts.
	return strings.NewReplacer("\n\txmlns:xlink=\"http://www.w3.org/1999/xlink\"", "", "font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,sans-serif;").Replace(svg)
}
