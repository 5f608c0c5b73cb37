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
	"unicode/utf8"

	"github.com/exanet/pfd/internal/outfile"
)

// A picture's measures, and the colours of columns. Values are defined by this project; the
// colours are Okabe and Ito's, which colour-blind readers can tell apart.
const (
	plotLeft, plotTop = 78, 34
	plotX, plotY      = 460, 260 // what the axes span
	plotChar          = 6.2      // pixels of a letter, about
	mostBars          = 60       // more are not told apart
	mostChars         = 34       // of a row's name

	logFrom float64 = 20 // a picture whose largest value is so many times the least has a logarithmic axis
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
	ticks     []float64 // round values: the first is low, the last is high
}

// newAxis returns an axis from one round value to another that has all values between.
func newAxis(values []float64, pixels float64) axis {
	a := axis{low: slices.Min(values), high: slices.Max(values), pixels: pixels}
	if a.log = a.low > 0 && a.high/a.low >= logFrom; a.log {
		// Of 1, 3, 10, 30 and so on those from the last that is not above any value to the
		// first that is not below any.
		for k := 2 * math.Floor(math.Log10(a.low)); len(a.ticks) == 0 || a.ticks[len(a.ticks)-1] < a.high; k++ {
			v := math.Pow(10, math.Floor(k/2))
			if math.Mod(k, 2) != 0 {
				v *= 3
			}
			if v <= a.low {
				a.ticks = a.ticks[:0]
			}
			a.ticks = append(a.ticks, v)
		}
	} else {
		a.low, a.high = min(0, a.low), max(a.high, a.low+1e-9)
		step := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/3)))
		for _, m := range []float64{1, 2, 5} {
			if (a.high-a.low)/(step*m) <= 6 {
				step *= m
				break
			}
		}
		first, last := math.Floor(a.low/step), math.Ceil(a.high/step-1e-9)
		for i := first; i <= last; i++ {
			a.ticks = append(a.ticks, i*step)
		}
	}
	a.low, a.high = a.ticks[0], a.ticks[len(a.ticks)-1]
	return a
}

func (a axis) at(v float64) float64 {
	if a.log {
		return a.pixels * math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	}
	return a.pixels * (v - a.low) / (a.high - a.low)
}

// panel is what one pair of axes shows: columns of one unit, and what the legend calls them.
type panel struct {
	unit           string
	columns, names []string
}

// panels divides the columns of a table without a unit by what they say behind a colon.
func (t *Table) panels() (list []panel) {
	for _, column := range t.Columns {
		name, unit := column, t.Unit
		if i := strings.LastIndex(column, ": "); unit == "" && i >= 0 {
			name, unit = column[:i], column[i+2:]
			if kind := strings.LastIndex(unit, ", "); kind >= 0 { // of memory: flat
				name, unit = name+unit[kind:], unit[:kind]
			}
		}
		i := slices.IndexFunc(list, func(p panel) bool { return p.unit == unit })
		if i < 0 {
			i = len(list)
			list = append(list, panel{unit: unit})
		}
		list[i].columns, list[i].names = append(list[i].columns, column), append(list[i].names, name)
	}
	return list
}

// drawing is an SVG under way.
type drawing struct{ strings.Builder }

func (d *drawing) text(x, y float64, attributes, s string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" fill="currentColor" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(s))
}

func (d *drawing) line(x1, y1, x2, y2 float64, attributes string) {
	fmt.Fprintf(d, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, attributes)
}

// style gives the colour of a column, and what tells the second round of colours from the first.
func style(i int) (colour, dashes, opacity string) {
	colour = plotColours[i%len(plotColours)]
	if i >= len(plotColours) {
		return colour, ` stroke-dasharray="5 3"`, ` fill-opacity="0.45"`
	}
	return colour, "", ""
}

// SVG draws the table: lines over rows that are numbers, else bars, with the intervals of
// the medians; axes of their own for each unit. It gives "" where there is nothing to see.
func (t *Table) SVG() string {
	t = t.flat()
	var xs []float64
	numeric := len(t.Rows) > 2
	longest := 0
	for _, row := range t.Rows {
		x, ok := value(row)
		numeric = numeric && ok
		xs = append(xs, x)
		longest = max(longest, min(utf8.RuneCountInString(row), mostChars))
	}
	panels := t.panels()
	bars, legend, intervals := 0, len("95 % interval"), false
	values := make([][]float64, len(panels))
	_ = t.each(func(c jsonCell) error {
		i := slices.IndexFunc(panels, func(p panel) bool { return slices.Contains(p.columns, c.Column) })
		values[i] = append(values[i], c.Low, c.Median, c.High)
		intervals = intervals || c.Low < c.High
		bars++
		return nil
	})
	for _, p := range panels {
		for _, name := range p.names {
			legend = max(legend, utf8.RuneCountInString(name))
		}
	}
	// A column whose unit nobody names is no picture.
	if bars < 2 || !numeric && bars > mostBars || slices.ContainsFunc(panels, func(p panel) bool { return p.unit == "" }) ||
		slices.ContainsFunc(values, func(v []float64) bool { return len(v) == 0 || slices.Max(v) <= 0 }) {
		return ""
	}
	// Names of bars that have no room side by side go down to the right.
	slanted := !numeric && float64(longest)*plotChar > plotX/float64(len(t.Rows))
	below := 52.0
	if slanted {
		below += float64(longest) * plotChar / 2
	}
	right := 38 + plotChar*float64(legend)
	if slanted {
		right = max(right, float64(longest)*plotChar*0.87)
	}
	width, each := plotLeft+plotX+right, plotTop+plotY+below
	d := new(drawing)
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="sans-serif" font-size="11" role="img">`+"\n",
		width, each*float64(len(panels)), width, each*float64(len(panels)))
	title := strings.ReplaceAll(t.caption(), "`", "")
	fmt.Fprintf(d, "<title>%s</title>\n", html.EscapeString(title))
	d.text(plotLeft, plotTop-16, `font-weight="bold"`, title)
	for i, p := range panels {
		fmt.Fprintf(d, `<g transform="translate(0 %.0f)">`+"\n", each*float64(i))
		y := newAxis(values[i], plotY)
		d.frame(t, p, y, each, intervals, numeric)
		if numeric {
			t.lines(d, p, y, xs)
		} else {
			t.bars(d, p, y, slanted)
		}
		d.WriteString("</g>\n")
	}
	d.WriteString("</svg>\n")
	return d.String()
}

// bottom is where the horizontal axis is.
const bottom = float64(plotTop + plotY)

// frame draws what is around the values: the vertical axis with its unit, and the legend.
func (d *drawing) frame(t *Table, p panel, y axis, height float64, intervals, lines bool) {
	for _, v := range y.ticks {
		at := bottom - y.at(v)
		d.line(plotLeft, at, plotLeft+plotX, at, `stroke="#8884"`)
		d.text(plotLeft-6, at+4, `text-anchor="end"`, number(v))
	}
	label := "median, " + p.unit
	if t.Means {
		label = "mean, " + p.unit
	}
	switch {
	case y.log && lines:
		label += ", logarithmic"
	case y.log:
		label += ", logarithmic: bars do not begin at 0"
	}
	d.text(-float64(plotTop)-plotY/2, 16, `text-anchor="middle" transform="rotate(-90)"`, label)
	d.text(plotLeft+plotX/2, height-10, `text-anchor="middle"`, t.RowName)
	const x = plotLeft + plotX + 16
	at := float64(plotTop)
	for i, name := range p.names {
		colour, _, opacity := style(i)
		fmt.Fprintf(d, `<rect x="%d" y="%.0f" width="10" height="10" fill="%s"%s/>`+"\n", x, at, colour, opacity)
		d.text(x+16, at+9, "", name)
		at += 16
	}
	if intervals {
		d.line(x+5, at, x+5, at+10, `stroke="currentColor"`)
		d.text(x+16, at+9, "", "95 % interval")
		at += 16
	}
	if !lines && slices.ContainsFunc(t.Rows, func(row string) bool {
		return slices.ContainsFunc(p.columns, func(column string) bool { return t.get(row, column, "") == nil })
	}) {
		d.text(x+3, at+9, "", notMeasured)
		d.text(x+16, at+9, "", "not measured")
	}
}

// notMeasured stands where a bar would.
const notMeasured = "×"

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

func (t *Table) lines(d *drawing, p panel, y axis, xs []float64) {
	low, high := slices.Min(xs), slices.Max(xs)
	x := axis{low: low, high: max(high, low+1e-9), log: low > 0 && high/low >= logFrom, pixels: plotX}
	last := math.Inf(-1)
	for i, row := range t.Rows {
		if at := plotLeft + x.at(xs[i]); at-last > 38 {
			d.text(at, bottom+16, `text-anchor="middle"`, row)
			last = at
		}
	}
	for i, column := range p.columns {
		colour, dashes, _ := style(i)
		var points []string
		for j, row := range t.Rows {
			c := t.get(row, column, "")
			if c == nil {
				continue
			}
			s := summarize(c.Samples)
			at, median := plotLeft+x.at(xs[j]), bottom-y.at(s.Median)
			points = append(points, fmt.Sprintf("%.1f,%.1f", at, median))
			d.line(at, bottom-y.at(s.Low), at, bottom-y.at(s.High), `stroke="`+colour+`"`)
			fmt.Fprintf(d, `<circle cx="%.1f" cy="%.1f" r="2.2" fill="%s"><title>%s</title></circle>`+"\n", at, median, colour, number(s.Median))
		}
		fmt.Fprintf(d, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"%s/>`+"\n", strings.Join(points, " "), colour, dashes)
	}
}

func (t *Table) bars(d *drawing, p panel, y axis, slanted bool) {
	room := float64(plotX) / float64(len(t.Rows))
	width := room * 0.8 / float64(len(p.columns))
	for i, row := range t.Rows {
		from := plotLeft + room*float64(i)
		short := row
		if r := []rune(row); len(r) > mostChars {
			short = string(r[:mostChars-1]) + "…"
		}
		if at := from + room/2; slanted {
			d.text(at-4, bottom+14, fmt.Sprintf(`transform="rotate(30 %.1f %.1f)"`, at-4, bottom+14), short)
		} else {
			d.text(at, bottom+16, `text-anchor="middle"`, short)
		}
		for j, column := range p.columns {
			c := t.get(row, column, "")
			if c == nil {
				d.text(from+room*0.1+width*(float64(j)+0.5), bottom-3, `text-anchor="middle"`, notMeasured)
				continue
			}
			s := summarize(c.Samples)
			colour, _, opacity := style(j)
			h, at := y.at(s.Median), from+room*0.1+width*float64(j)
			fmt.Fprintf(d, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s><title>%s, %s: %s</title></rect>`+"\n",
				at, bottom-h, width, h, colour, opacity, html.EscapeString(row), html.EscapeString(column), number(s.Median))
			d.line(at+width/2, bottom-y.at(s.Low), at+width/2, bottom-y.at(s.High), `stroke="currentColor"`)
		}
	}
}

// page is the report as one file that needs no other.
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
		if err := outfile.Write(filepath.Join(dir, name), []byte(b.String())); err != nil {
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
			if err := outfile.Write(filepath.Join(dir, t.Name+".svg"), []byte(svg)); err != nil {
				return err
			}
		}
	}
	return nil
}
