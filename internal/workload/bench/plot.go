package bench

import (
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/exanet/pfd/internal/outfile"
	"github.com/exanet/pfd/internal/picture"
)

// Sizes of a picture, in points. Values are defined by this project.
const (
	plotWidth, plotHeight = 420, 230 // of the axes
	mostBars              = 60       // more bars are too thin
	mostChars             = 34       // of a row's name
	groupWidth            = 0.8      // part of a row's width
	rowLabel              = 40       // smallest distance of two names of rows below lines
)

// plotColours are Okabe and Ito's, which colour-blind readers can distinguish.
var plotColours = []color.NRGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x00, 0x00, 0x00, 0xff}, {0x99, 0x99, 0x99, 0xff},
}

// value returns the number at the start of a row's name. A size is in bytes.
func value(row string) (float64, bool) {
	word, unit, _ := strings.Cut(row, " ")
	v, err := strconv.ParseFloat(word, 64)
	switch unit {
	case "KiB":
		v *= 1 << 10
	case "MiB":
		v *= 1 << 20
	}
	return v, err == nil && picture.Drawable(v)
}

// panel is the data of one pair of axes: columns with one unit.
type panel struct {
	unit      string
	names     []string    // of the columns
	cells     [][]Summary // by column and row; a cell without samples was not measured
	measured  int         // number of cells with samples
	low, high float64     // bounds of their intervals
}

// panels returns a panel for each unit. If the table has no unit, a column's unit is the text
// after the last colon of its name. If both kinds of memory were measured, each kind has
// columns of its own.
func (t *Table) panels() (list []*panel) {
	split := t.split()
	for _, column := range t.Columns {
		for _, m := range memories {
			name, unit := column, t.Unit
			if i := strings.LastIndex(column, ": "); unit == "" && i >= 0 {
				name, unit = column[:i], column[i+2:]
			}
			if split && m != "" {
				name += ", " + string(m)
			}
			i := slices.IndexFunc(list, func(p *panel) bool { return p.unit == unit })
			if i < 0 {
				i = len(list)
				list = append(list, &panel{unit: unit, low: math.Inf(1), high: math.Inf(-1)})
			}
			p, before, cells := list[i], list[i].measured, make([]Summary, len(t.Rows))
			for j, row := range t.Rows {
				if c := t.get(row, column, m); c != nil && c.memory == m {
					s := summarize(slices.DeleteFunc(slices.Clone(c.Samples), func(v float64) bool { return !picture.Drawable(v) }))
					if cells[j] = s; s.N > 0 {
						p.measured, p.low, p.high = p.measured+1, min(p.low, s.Low), max(p.high, s.High)
					}
				}
			}
			if p.measured > before {
				p.names, p.cells = append(p.names, name), append(p.cells, cells)
			}
		}
	}
	return list
}

// SVG draws the table: lines if the rows are numbers, otherwise bars, with the intervals of
// the medians, and separate axes for each unit. It returns "" if the table is not suitable.
func (t *Table) SVG() string {
	var xs []float64
	lines := len(t.Rows) > 2
	for _, row := range t.Rows {
		x, ok := value(row)
		lines = lines && ok
		xs = append(xs, x)
	}
	var plots []*plot.Plot
	cells, title := 0, strings.ReplaceAll(t.caption(), "`", "")
	for _, panel := range t.panels() {
		if panel.unit == "" || panel.high <= 0 {
			return ""
		}
		p := picture.New(title, t.RowName, "median, "+panel.unit)
		if t.Means {
			p.Y.Label.Text = "mean, " + panel.unit
		}
		panel.draw(p, t.Rows, xs, lines)
		plots, cells, title = append(plots, p), cells+panel.measured, ""
	}
	if cells < 2 || !lines && cells > mostBars {
		return ""
	}
	return picture.SVG(plotWidth, plotHeight, plots...)
}

// overNumbers makes an axis for rows that are numbers and labels those that have room. It
// returns the positions of the rows.
func overNumbers(a *plot.Axis, rows []string, xs []float64) (at []float64) {
	place, _ := picture.Axis(a, slices.Min(xs), slices.Max(xs))
	var ticks plot.ConstantTicks
	last := math.Inf(-1)
	for i, row := range rows {
		at = append(at, place(xs[i]))
		ticks = append(ticks, plot.Tick{Value: at[i]})
		if x := a.Norm(at[i]) * plotWidth; x-last > rowLabel {
			ticks[i].Label, last = row, x
		}
	}
	a.Tick.Marker = ticks
	return at
}

// overNames makes an axis for rows that are names. It rotates the labels if they do not fit
// side by side. It returns the positions of the rows.
func overNames(a *plot.Axis, rows []string) (at []float64) {
	var ticks plot.ConstantTicks
	for i, row := range rows {
		if r := []rune(row); len(r) > mostChars {
			row = string(r[:mostChars-1]) + "…"
		}
		at = append(at, float64(i))
		ticks = append(ticks, plot.Tick{Value: at[i], Label: row})
		if a.Tick.Label.Width(row) > vg.Length(plotWidth*groupWidth/float64(len(rows))) {
			a.Tick.Label.Rotation, a.Tick.Label.XAlign = -math.Pi/6, draw.XLeft
		}
	}
	a.Min, a.Max, a.Tick.Marker = -0.5, float64(len(rows))-0.5, ticks
	return at
}

// intervals are error bars with an entry in the legend.
type intervals struct{ plotter.YErrorBars }

// Thumbnail implements plot.Thumbnailer.
func (i *intervals) Thumbnail(c *draw.Canvas) {
	c.StrokeLine2(i.LineStyle, c.Center().X, c.Min.Y, c.Center().X, c.Max.Y)
}

// draw draws each column as a line or as a bar for each row.
func (l *panel) draw(p *plot.Plot, rows []string, xs []float64, lines bool) {
	y, logarithmic := picture.Axis(&p.Y, l.low, l.high)
	if logarithmic {
		p.Y.Label.Text += ", logarithmic"
	}
	if lines {
		xs = overNumbers(&p.X, rows, xs)
	} else if xs = overNames(&p.X, rows); logarithmic {
		p.Y.Label.Text += ":\nbars do not begin at 0"
	}
	thin := draw.LineStyle{Color: color.Black, Width: 0.75}
	between := &intervals{plotter.YErrorBars{LineStyle: thin, CapWidth: 4}}
	missing := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: color.Black, Radius: 3, Shape: draw.CrossGlyph{}}}
	if lines {
		p.Add(between) // below the marks
	}
	width := groupWidth / float64(len(l.names))
	for i, name := range l.names {
		colour, round := plotColours[i%len(plotColours)], i/len(plotColours)
		line := &plotter.Line{LineStyle: draw.LineStyle{Color: colour, Width: 1, Dashes: plotutil.Dashes(round)}}
		if round > 0 {
			colour.A = 0x73
		}
		bars := &plotter.Polygon{Color: colour}
		for j, s := range l.cells[i] {
			at := plotter.XY{X: xs[j], Y: y(s.Median)}
			if !lines {
				at.X += width*(float64(i)+0.5) - groupWidth/2
			}
			if s.N == 0 {
				missing.XYs = append(missing.XYs, at)
				continue
			}
			line.XYs = append(line.XYs, at)
			bars.XYs = append(bars.XYs, picture.Rectangle(at.X-width/2, y(0), at.X+width/2, at.Y))
			if s.Low < s.High {
				between.XYs = append(between.XYs, at)
				between.YErrors = append(between.YErrors, struct{ Low, High float64 }{at.Y - y(s.Low), y(s.High) - at.Y})
			}
		}
		if lines {
			marks := &plotter.Scatter{XYs: line.XYs, GlyphStyle: draw.GlyphStyle{Color: line.Color, Radius: 2.5, Shape: plotutil.Shape(i + round)}}
			p.Add(line, marks)
			p.Legend.Add(name, line, marks)
		} else {
			p.Add(bars)
			p.Legend.Add(name, bars)
		}
	}
	if len(between.XYs) > 0 {
		p.Legend.Add("95 % interval", between)
	}
	if lines {
		return
	}
	p.Add(between, missing)
	if len(missing.XYs) > 0 {
		p.Legend.Add("not measured", missing)
	}
}

// page is the template of the report, which needs no other file.
var page = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{.Title}}</title>
<style>
:root{color-scheme:light dark}
body{font:14px/1.4 sans-serif;max-width:64em;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}
svg{max-width:100%;height:auto}
.warn{border-left:4px solid #d55e00;padding-left:1em}
</style>
<h1>{{.Title}}</h1>
<p>{{.Head}}</p>
{{range .Warnings}}<p class="warn">{{.}}</p>
{{end}}{{range .Tables}}<h2>{{.Caption}}</h2>
{{.SVG}}
{{.Table}}
{{range .Notes}}<p>{{.}}</p>
{{end}}{{end}}</html>
`))

// HTML writes the report as one self-contained file.
func (r *Report) HTML(w io.Writer) error {
	type table struct {
		Caption    string
		SVG, Table template.HTML
		Notes      []string
	}
	d := struct {
		Title, Head string
		Warnings    []string
		Tables      []table
	}{r.title(), r.measured(), r.warnings(), nil}
	for _, t := range r.Tables {
		d.Tables = append(d.Tables, table{t.caption(), template.HTML(t.SVG()), template.HTML(t.writer().RenderHTML()), t.Notes})
	}
	return page.Execute(w, d)
}

// Save writes results.jsonl, results.csv, report.html and the tables' pictures into a
// directory.
func (r *Report) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{"results.jsonl": r.JSON, "results.csv": r.CSV, "report.html": r.HTML} {
		var b strings.Builder
		if err := write(&b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := outfile.Write(filepath.Join(dir, name), []byte(b.String())); err != nil {
			return err
		}
	}
	return r.Pictures(dir)
}

// Pictures writes the tables' pictures into a directory.
func (r *Report) Pictures(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range r.Tables {
		if svg := t.SVG(); svg != "" {
			if err := outfile.Write(filepath.Join(dir, t.Name+".svg"), []byte(svg)); err != nil {
				return err
			}
		}
	}
	return nil
}
