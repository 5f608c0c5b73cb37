package bench

import (
	"fmt"
	"html"
	"html/template"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A picture's measures, and the colours of columns (ours; colours of Okabe and Ito, which
// differ for everybody).
const (
	plotWidth, plotHeight         = 720, 360
	plotLeft, plotRight           = 70, 200
	plotTop, plotBottom           = 30, 60
	plotX, plotY                  = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
	mostBars                      = 60 // more are not told apart
	logFrom               float64 = 20 // a picture whose largest value is so many times the least has a logarithmic axis
)

var plotColours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"}

// value gives a row's name as a number: a size, or a number with more behind it.
func value(row string) (float64, bool) {
	word, unit, _ := strings.Cut(row, " ")
	v, err := strconv.ParseFloat(word, 64)
	switch unit {
	case "KiB":
		v *= 1 << 10
	case "MiB":
		v *= 1 << 20
	}
	return v, err == nil
}

// axis maps values to pixels, by their logarithms where they are far apart.
type axis struct {
	low, high float64
	log       bool
	pixels    float64
}

func newAxis(values []float64, pixels float64, fromZero bool) axis {
	low, high := slices.Min(values), slices.Max(values)
	a := axis{low, high, low > 0 && high/low >= logFrom, pixels}
	if !a.log && fromZero {
		a.low = min(0, low)
	}
	if a.high <= a.low {
		a.high = a.low + 1
	}
	return a
}

func (a axis) at(v float64) float64 {
	if a.log {
		return a.pixels * math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	}
	return a.pixels * (v - a.low) / (a.high - a.low)
}

// ticks gives some round values of the axis.
func (a axis) ticks() (list []float64) {
	if a.log {
		for v := math.Pow(10, math.Floor(math.Log10(a.low))); v <= a.high*1.001; v *= 10 {
			for _, m := range []float64{1, 3} {
				if w := v * m; w >= a.low*0.999 && w <= a.high*1.001 {
					list = append(list, w)
				}
			}
		}
		return list
	}
	step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/3)))
	for _, m := range []float64{1, 2, 5} {
		if (a.high-a.low)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	for v := math.Ceil(a.low/step) * step; v <= a.high+step/1e6; v += step {
		list = append(list, v)
	}
	return list
}

// SVG draws the table: lines over rows that are numbers, else bars, with the intervals of
// the medians. It gives "" where there is nothing to see.
func (t *Table) SVG() string {
	t = t.flat()
	var xs, ys []float64
	numeric := len(t.Rows) > 2
	for _, row := range t.Rows {
		x, ok := value(row)
		numeric = numeric && ok
		xs = append(xs, x)
	}
	bars := 0
	_ = t.each(func(c jsonCell) error {
		ys = append(ys, c.Low, c.High)
		bars++
		return nil
	})
	// A table whose columns are of different units is no picture.
	if bars < 2 || t.Unit == "" && !numeric || !numeric && bars > mostBars || slices.Max(ys) <= 0 {
		return ""
	}
	y := newAxis(ys, plotY, true)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="11" role="img">`+"\n", plotWidth, plotHeight, plotWidth, plotHeight)
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="currentColor">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
	}
	line := func(x1, y1, x2, y2 float64, colour string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
	}
	bottom := float64(plotTop + plotY)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(t.caption()))
	text(plotLeft, plotTop-12, "start", t.caption())
	for _, v := range y.ticks() {
		at := bottom - y.at(v)
		line(plotLeft, at, plotLeft+plotX, at, "#8884")
		text(plotLeft-6, at+4, "end", number(v))
	}
	for i, column := range t.Columns {
		colour := plotColours[i%len(plotColours)]
		at := float64(plotTop + 16*i)
		fmt.Fprintf(&b, `<rect x="%d" y="%.0f" width="10" height="10" fill="%s"/>`+"\n", plotLeft+plotX+14, at, colour)
		text(plotLeft+plotX+30, at+9, "start", column)
	}
	text(plotLeft+plotX/2, plotHeight-8, "middle", t.RowName)
	if numeric {
		t.lines(&b, newAxis(xs, plotX, false), y, xs, bottom, text, line)
	} else {
		t.bars(&b, y, bottom, text)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// flat gives the table with columns of their own for what was measured in each kind of memory.
func (t *Table) flat() *Table {
	f := *t
	f.Columns, f.cells = nil, nil
	split := t.split()
	for _, column := range t.Columns {
		for _, m := range memories {
			name := column
			if split && m != "" {
				name += ", " + string(m)
			}
			for _, row := range t.Rows {
				if c := t.get(row, column, m); c != nil && c.memory == m {
					*f.cell(row, name).of(m) = Cell{Samples: c.Samples, memory: m}
				}
			}
		}
	}
	return &f
}

func (t *Table) lines(b *strings.Builder, x, y axis, xs []float64, bottom float64, text func(x, y float64, anchor, s string), line func(x1, y1, x2, y2 float64, colour string)) {
	last := math.Inf(-1)
	for i, row := range t.Rows {
		if at := plotLeft + x.at(xs[i]); at-last > 38 {
			text(at, bottom+16, "middle", row)
			last = at
		}
	}
	for i, column := range t.Columns {
		colour := plotColours[i%len(plotColours)]
		var points []string
		for j, row := range t.Rows {
			c := t.get(row, column, "")
			if c == nil {
				continue
			}
			s := summarize(c.Samples)
			at := plotLeft + x.at(xs[j])
			points = append(points, fmt.Sprintf("%.1f,%.1f", at, bottom-y.at(s.Median)))
			line(at, bottom-y.at(s.Low), at, bottom-y.at(s.High), colour)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", strings.Join(points, " "), colour)
	}
}

func (t *Table) bars(b *strings.Builder, y axis, bottom float64, text func(x, y float64, anchor, s string)) {
	room := float64(plotX) / float64(len(t.Rows))
	width := room * 0.8 / float64(len(t.Columns))
	for i, row := range t.Rows {
		from := plotLeft + room*float64(i)
		short := row
		if most := max(int(room/6), 3); len(short) > most {
			short = short[:most-1] + "…"
		}
		text(from+room/2, bottom+16, "middle", short)
		for j, column := range t.Columns {
			c := t.get(row, column, "")
			if c == nil {
				continue
			}
			s := summarize(c.Samples)
			h := y.at(s.Median)
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s, %s: %s</title></rect>`+"\n",
				from+room*0.1+width*float64(j), bottom-h, width, h, plotColours[j%len(plotColours)], html.EscapeString(row), html.EscapeString(column), number(s.Median))
		}
	}
}

// page is the report as one file that needs no other.
var page = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>exanetctl bench</title>
<style>
:root{color-scheme:light dark}
body{font:14px/1.4 sans-serif;max-width:64em;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;display:block;overflow-x:auto}
td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}
svg{max-width:100%;height:auto}
.warn{border-left:4px solid #d55e00;padding-left:1em}
</style>
<h1>exanetctl bench</h1>
<p style="white-space:pre-line">{{.Head}}</p>
{{range .Suites}}{{if .Distorted}}<p class="warn">{{.Name}} is distorted: {{.Distorted}}</p>{{end}}{{end}}
{{range .Tables}}<h2>{{.Caption}}</h2>
{{.SVG}}
<table>{{range $i, $line := .Grid}}<tr>{{range $line}}{{if $i}}<td>{{.}}</td>{{else}}<th>{{.}}</th>{{end}}{{end}}</tr>
{{end}}</table>
{{range .Notes}}<p>{{.}}</p>
{{end}}{{end}}</html>
`))

// HTML writes the report as one self-contained file.
func (r *Report) HTML(w io.Writer) error {
	type table struct {
		Caption string
		SVG     template.HTML
		Grid    [][]string
		Notes   []string
	}
	d := struct {
		Head   string
		Suites []SuiteReport
		Tables []table
	}{r.Head(), r.Suites, nil}
	for _, t := range r.Tables {
		d.Tables = append(d.Tables, table{t.caption(), template.HTML(t.SVG()), t.grid(), t.Notes})
	}
	return page.Execute(w, d)
}

// Save writes everything into a directory: results.jsonl, results.csv, report.html and a
// picture for each table that has one.
func (r *Report) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{"results.jsonl": r.JSON, "results.csv": r.CSV, "report.html": r.HTML} {
		var b strings.Builder
		if err := write(&b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return r.Pictures(dir)
}

// Pictures writes those of the tables into a directory.
func (r *Report) Pictures(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range r.Tables {
		if svg := t.SVG(); svg != "" {
			if err := os.WriteFile(filepath.Join(dir, t.Name+".svg"), []byte(svg), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
