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

	pretty "github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/exanet/pfd/internal/percentile"
	"github.com/exanet/pfd/internal/workload"
)

// Table is a table of samples that a suite has measured.
type Table struct {
	Suite, Name string
	Title       string
	Unit        string // of the samples
	RowName     string // the quantity of the rows; if they are numbers a plot has lines
	// Base names the column or row that the others are compared with; "" means none.
	Base string
	// Means means that a sample is the mean of a run's transfers.
	Means bool
	// Paired means that all cells have one sample of each round.
	Paired bool
	Notes  []string

	Rows, Columns []string
	cells         map[[2]string]*Cell
}

// Cell holds the samples of a case, for each kind of memory.
type Cell struct {
	Samples []float64
	memory  workload.Memory // kind of memory of the samples; "" if it makes no difference
	any     *Cell           // samples of workload.Any
}

// of returns the cell for a kind of memory.
func (c *Cell) of(m workload.Memory) *Cell {
	if m != workload.Any {
		c.memory = m
		return c
	}
	if c.any == nil {
		c.any = &Cell{memory: m}
	}
	return c.any
}

// pick returns the cell of a kind, or that of the other kind if it has no samples, or nil if
// neither has any.
func (c *Cell) pick(m workload.Memory) *Cell {
	switch {
	case c == nil:
		return nil
	case c.any != nil && len(c.any.Samples) > 0 && (m == workload.Any || len(c.Samples) == 0):
		return c.any
	case len(c.Samples) == 0:
		return nil
	}
	return c
}

// memories are the values of Cell.memory.
var memories = [...]workload.Memory{"", workload.Shared, workload.Any}

// cell returns the cell of a row and a column, and adds them if they are new.
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

// Add adds a sample to a cell, and its row and column if they are new.
func (t *Table) Add(row, column string, sample float64) {
	c := t.cell(row, column)
	c.Samples = append(c.Samples, sample)
}

func (t *Table) note(format string, args ...any) {
	t.Notes = append(t.Notes, fmt.Sprintf(format, args...))
}

// Summary summarizes samples. Low and High are the 95 % confidence interval of the median,
// from order statistics.
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
	s := Summary{N: len(v), Median: percentile.Of(v, 50), P99: percentile.Of(v, 99)}
	s.Low, s.High = at(math.Floor(n/2-0.98*math.Sqrt(n))), at(math.Ceil(n/2+0.98*math.Sqrt(n)))
	for _, x := range v {
		s.Mean += x / n
	}
	return s
}

// get returns the cell of a kind of memory, or of the other kind, or nil without samples.
func (t *Table) get(row, column string, m workload.Memory) *Cell {
	return t.cells[[2]string{row, column}].pick(m)
}

// Median returns the median of a cell, of shared memory if both kinds were measured, or 0
// without samples.
func (t *Table) Median(row, column string) float64 { return t.median(row, column, workload.Shared) }

func (t *Table) median(row, column string, m workload.Memory) float64 {
	if c := t.get(row, column, m); c != nil {
		return summarize(c.Samples).Median
	}
	return 0
}

// kinds returns the kinds of memory that have samples.
func (t *Table) kinds() (list []workload.Memory) {
	_ = t.each(func(c jsonCell) error {
		if !slices.Contains(list, c.Memory) {
			list = append(list, c.Memory)
		}
		return nil
	})
	return list
}

// split reports whether a cell has samples in both kinds of memory.
func (t *Table) split() bool {
	for _, c := range t.cells {
		if c.pick("") != c.pick(workload.Any) {
			return true
		}
	}
	return false
}

// base returns the cell that a cell is compared with, if possible of the same kind of memory.
func (t *Table) base(row, column string, m workload.Memory) *Cell {
	switch {
	case t.Base == "" || t.Base == row || t.Base == column:
		return nil
	case slices.Contains(t.Columns, t.Base):
		return t.get(row, t.Base, m)
	}
	return t.get(t.Base, column, m)
}

// text formats a cell: the median, and its ratio to or difference from the base.
func (t *Table) text(row, column string, c *Cell) string {
	if c == nil {
		return ""
	}
	s := summarize(c.Samples)
	text := number(s.Median)
	if t.Unit == "us" {
		text += " us"
	}
	if b := t.base(row, column, c.memory); b != nil {
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

// writer returns the table for go-pretty, which renders it for a terminal, in Markdown and in
// HTML. If both kinds of memory were measured, a row has a line for each kind.
func (t *Table) writer() pretty.Writer {
	w := pretty.NewWriter()
	style := pretty.StyleDefault
	style.Options = pretty.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatDefault
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	w.SetStyle(style)
	kinds, named := memories[:], 2 // named is the number of columns that name a row
	if !t.split() {
		kinds, named = memories[:1], 1
	}
	head := pretty.Row{t.RowName, "memory"}[:named]
	for _, column := range t.Columns {
		head = append(head, column)
	}
	w.AppendHeader(head)
	for _, row := range t.Rows {
		before := w.Length()
		for _, m := range kinds {
			line, some := pretty.Row{row, m}[:named], false
			for _, column := range t.Columns {
				c := t.get(row, column, m)
				if named > 1 && c != nil && c.memory != m {
					c = nil
				}
				line, some = append(line, t.text(row, column, c)), some || c != nil
			}
			if some {
				w.AppendRow(line)
			}
		}
		if w.Length() == before {
			w.AppendRow(pretty.Row{row})
		}
	}
	return w
}

// caption returns the title with the unit.
func (t *Table) caption() string {
	text := t.Title
	if t.Unit != "us" && t.Unit != "" && !strings.Contains(text, t.Unit) {
		text += " (" + t.Unit + ")"
	}
	if kinds := t.kinds(); slices.Contains(kinds, workload.Any) && !slices.Contains(kinds, workload.Shared) {
		text += "; memory that is not shared"
	}
	return text
}

// Markdown returns the table for a document.
func (t *Table) Markdown() string {
	text := fmt.Sprintf("\n### %s\n\n%s\n", t.caption(), t.writer().RenderMarkdown())
	for _, n := range t.Notes {
		text += "\n" + n + "\n"
	}
	return text
}

// Text returns the table for a terminal.
func (t *Table) Text() string {
	return strings.Join(append([]string{t.caption(), t.writer().Render()}, t.Notes...), "\n") + "\n"
}

// jsonCell is a cell as a line of JSON, with all samples.
type jsonCell struct {
	Suite  string `json:"suite"`
	Table  string `json:"table"`
	Row    string `json:"row"`
	Column string `json:"column"`
	Unit   string `json:"unit"`
	// Memory is the kind of memory; "" if it makes no difference.
	Memory workload.Memory `json:"memory,omitempty"`
	Summary
	Samples []float64 `json:"samples"`
}

func (t *Table) each(f func(jsonCell) error) error {
	for _, row := range t.Rows {
		for _, column := range t.Columns {
			for _, c := range slices.Compact([]*Cell{t.get(row, column, ""), t.get(row, column, workload.Any)}) {
				if c == nil {
					continue
				}
				if err := f(jsonCell{t.Suite, t.Name, row, column, t.Unit, c.memory, summarize(c.Samples), c.Samples}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// JSON writes the report as lines: the machine and the suites in the first, then a line for
// each cell with all samples.
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
	// Flush reports the errors of Write.
	_ = out.Write([]string{"suite", "table", "row", "column", "unit", "n", "median", "low", "high", "mean", "p99", "memory"})
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	for _, t := range r.Tables {
		_ = t.each(func(c jsonCell) error {
			return out.Write([]string{c.Suite, c.Table, c.Row, c.Column, c.Unit, strconv.Itoa(c.N), f(c.Median), f(c.Low), f(c.High), f(c.Mean), f(c.P99), string(c.Memory)})
		})
	}
	out.Flush()
	return out.Error()
}

// title returns the command that made the report.
func (r *Report) title() string {
	if len(r.Suites) == 1 && r.Suites[0].Name == studySuite {
		return "exanetctl study"
	}
	return "exanetctl bench"
}

// measured describes the machine and the figures.
func (r *Report) measured() string {
	m := r.Machine
	if len(r.Tables) == 0 {
		return fmt.Sprintf("Nothing was measured on %d processors (%s), Linux %s.\n", m.Processors, m.Processor, m.Kernel)
	}
	return fmt.Sprintf("Measured on %d processors (%s), Linux %s, governor %s, load %.1f at the start. Figures are\nmedians, with the ratio to the base figure in parentheses; for figures of the same rounds it is the\ndifference with its 95 %% interval. Every byte was checked; %d bytes were pinned (suites that pin excluded).\n",
		m.Processors, m.Processor, m.Kernel, m.Governor, m.Load, r.PinnedBytes)
}

// warnings describes what disturbed the measurements and which suites were skipped.
func (r *Report) warnings() (list []string) {
	for _, s := range r.Suites {
		if s.Distorted != "" && s.Skipped == "" {
			list = append(list, fmt.Sprintf("%s is distorted: %s.", s.Name, s.Distorted))
		}
		if s.Guards != 0 {
			list = append(list, fmt.Sprintf("%s: %d blocks were retransmitted after guard time-outs.", s.Name, s.Guards))
		}
		if s.Skipped != "" {
			list = append(list, fmt.Sprintf("%s is skipped: %s.", s.Name, s.Skipped))
		}
	}
	return list
}

// Head describes the machine and what disturbed the measurements.
func (r *Report) Head() string {
	text := r.measured()
	for _, w := range r.warnings() {
		text += "\n" + w + "\n"
	}
	return text
}

// Markdown returns all tables for a document, except that of folios.
func (r *Report) Markdown() string {
	var b strings.Builder
	b.WriteString(r.Head())
	for _, t := range r.Tables {
		if t.Name != foliosTable && t.Name != hostsTable && t.Name != hostsStream {
			b.WriteString(t.Markdown())
		}
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

// Table returns the table with a name, or nil if it was not measured.
func (r *Report) Table(name string) *Table {
	for _, t := range r.Tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}
