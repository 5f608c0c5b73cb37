package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Table is what a suite has measured: samples in rows and columns.
type Table struct {
	Suite, Name string
	Title       string
	Unit        string // of the samples: us, or what they are
	RowName     string // what the rows are; where they are numbers a plot has lines
	// Base names a column or a row that the others are compared with; "": none.
	Base string
	// Paired says that the samples of all cells are of the same rounds, one of each.
	Paired bool
	Notes  []string

	Rows, Columns []string
	cells         map[[2]string]*Cell
}

// Cell is what was measured of one thing.
type Cell struct{ Samples []float64 }

// cell gives the cell of a row and a column, which are added where they are new.
func (t *Table) cell(row, column string) *Cell {
	if t.cells == nil {
		t.cells = make(map[[2]string]*Cell)
	}
	at := [2]string{row, column}
	if t.cells[at] == nil {
		t.cells[at] = &Cell{}
		if !slices.Contains(t.Rows, row) {
			t.Rows = append(t.Rows, row)
		}
		if !slices.Contains(t.Columns, column) {
			t.Columns = append(t.Columns, column)
		}
	}
	return t.cells[at]
}

func (t *Table) note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

// Summary is what is told of samples: the median, and the interval that holds the true
// one in 95 of 100 cases, by the order of the samples alone.
type Summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Mean   float64 `json:"mean"`
	P99    float64 `json:"p99"`
}

func summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	v := slices.Sorted(slices.Values(samples))
	n := float64(len(v))
	at := func(x float64) float64 { return v[min(max(int(x), 0), len(v)-1)] }
	s := Summary{N: len(v), Median: v[(len(v)-1)/2], P99: at(math.Ceil(0.99*n) - 1)}
	s.Low, s.High = at(math.Floor(n/2-0.98*math.Sqrt(n))), at(math.Ceil(n/2+0.98*math.Sqrt(n)))
	for _, x := range v {
		s.Mean += x / n
	}
	return s
}

// Median gives that of a cell, 0 where nothing was measured.
func (t *Table) Median(row, column string) float64 {
	if c := t.cells[[2]string{row, column}]; c != nil {
		return summarize(c.Samples).Median
	}
	return 0
}

// base gives the cell that another one is compared with.
func (t *Table) base(row, column string) *Cell {
	switch {
	case t.Base == "" || t.Base == row || t.Base == column:
		return nil
	case slices.Contains(t.Columns, t.Base):
		return t.cells[[2]string{row, t.Base}]
	}
	return t.cells[[2]string{t.Base, column}]
}

// text gives a cell as it is shown: the median, and by how much it is its base.
func (t *Table) text(row, column string) string {
	c := t.cells[[2]string{row, column}]
	if c == nil || len(c.Samples) == 0 {
		return ""
	}
	s := summarize(c.Samples)
	text := number(s.Median)
	if t.Unit == "us" {
		text += " us"
	}
	if b := t.base(row, column); b != nil && len(b.Samples) > 0 {
		if !t.Paired || len(b.Samples) != len(c.Samples) {
			return text + fmt.Sprintf(" (%.2f)", s.Median/summarize(b.Samples).Median)
		}
		ratios := make([]float64, len(c.Samples))
		for i := range ratios {
			ratios[i] = c.Samples[i] / b.Samples[i]
		}
		r := summarize(ratios)
		text += fmt.Sprintf(" (%+.1f %%, %+.1f to %+.1f)", 100*r.Median-100, 100*r.Low-100, 100*r.High-100)
	}
	return text
}

func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// grid gives the table as text, its head first.
func (t *Table) grid() [][]string {
	lines := [][]string{append([]string{t.RowName}, t.Columns...)}
	for _, row := range t.Rows {
		line := []string{row}
		for _, column := range t.Columns {
			line = append(line, t.text(row, column))
		}
		lines = append(lines, line)
	}
	return lines
}

// caption is what the table is, with what its cells are.
func (t *Table) caption() string {
	text := t.Title
	if t.Unit != "us" && t.Unit != "" {
		text += " (" + t.Unit + ")"
	}
	return text
}

// Markdown gives the table.
func (t *Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", t.caption())
	for i, line := range t.grid() {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
		if i == 0 {
			b.WriteString("|" + strings.Repeat(" --- |", len(line)) + "\n")
		}
	}
	for _, n := range t.Notes {
		b.WriteString("\n" + n + "\n")
	}
	return b.String()
}

// Text gives the table for a terminal.
func (t *Table) Text() string {
	lines := t.grid()
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, c := range line {
			widths[i] = max(widths[i], len(c))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", t.caption())
	for _, line := range lines {
		for i, c := range line {
			fmt.Fprintf(&b, "%-*s  ", widths[i], c)
		}
		b.WriteString("\n")
	}
	for _, n := range t.Notes {
		b.WriteString(n + "\n")
	}
	return b.String()
}

// jsonCell is a line of JSON: a cell with all its samples.
type jsonCell struct {
	Suite  string `json:"suite"`
	Table  string `json:"table"`
	Row    string `json:"row"`
	Column string `json:"column"`
	Unit   string `json:"unit"`
	Summary
	Samples []float64 `json:"samples"`
}

func (t *Table) each(f func(jsonCell) error) error {
	for _, row := range t.Rows {
		for _, column := range t.Columns {
			c := t.cells[[2]string{row, column}]
			if c == nil || len(c.Samples) == 0 {
				continue
			}
			if err := f(jsonCell{t.Suite, t.Name, row, column, t.Unit, summarize(c.Samples), c.Samples}); err != nil {
				return err
			}
		}
	}
	return nil
}

// JSON writes the report as lines: the machine and the suites first, then each cell with
// every sample.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return err
	}
	for _, t := range r.Tables {
		if err := t.each(func(c jsonCell) error { return enc.Encode(c) }); err != nil {
			return err
		}
	}
	return nil
}

// CSV writes a line for each cell, without the samples.
func (r *Report) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	// Its errors come with Flush.
	_ = out.Write([]string{"suite", "table", "row", "column", "unit", "n", "median", "low", "high", "mean", "p99"})
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for _, t := range r.Tables {
		_ = t.each(func(c jsonCell) error {
			return out.Write([]string{c.Suite, c.Table, c.Row, c.Column, c.Unit, strconv.Itoa(c.N), f(c.Median), f(c.Low), f(c.High), f(c.Mean), f(c.P99)})
		})
	}
	out.Flush()
	return out.Error()
}

// Head says on what was measured, and what disturbed it.
func (r *Report) Head() string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "Measured on %d processors (%s), Linux %s, governor %s, load %.1f at the start: medians;\nin brackets the ratio to the figure it is compared with, or, where both are of the same rounds, the\ndifference with its interval of 95 %%. Every byte was checked; %d bytes were pinned (but where pinning is measured).\n",
		m.Processors, m.Processor, m.Kernel, m.Governor, m.Load, r.PinnedBytes)
	for _, s := range r.Suites {
		if s.Distorted != "" {
			fmt.Fprintf(&b, "\n%s is distorted: %s.\n", s.Name, s.Distorted)
		}
		if s.Guards != 0 {
			fmt.Fprintf(&b, "\n%s: guard time-outs sent %d blocks again.\n", s.Name, s.Guards)
		}
		if s.Skipped != "" {
			fmt.Fprintf(&b, "\n%s is skipped: %s.\n", s.Name, s.Skipped)
		}
	}
	return b.String()
}

// Markdown gives all tables, for a document.
func (r *Report) Markdown() string {
	var b strings.Builder
	b.WriteString(r.Head())
	for _, t := range r.Tables {
		b.WriteString(t.Markdown())
	}
	return b.String()
}

// Text writes all tables for a terminal.
func (r *Report) Text(w io.Writer) error {
	for _, t := range r.Tables {
		if _, err := io.WriteString(w, t.Text()+"\n"); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, r.Head())
	return err
}

// Table gives that of a name, nil where it was not measured.
func (r *Report) Table(name string) *Table {
	for _, t := range r.Tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}
