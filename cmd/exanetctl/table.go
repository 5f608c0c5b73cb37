package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/exanet/pfd/internal/maybe"
)

// table collects rows and writes the columns of --columns, or those that fit the terminal.
type table struct {
	a    *app
	head []string
	// spare are the columns to leave out on a narrow terminal, the first one first.
	spare []string
	// wraps are the columns whose text wraps if the terminal is still too narrow.
	wraps []string
	rows  [][]any
}

// table returns an empty table whose last column wraps.
func (a *app) table(columns ...string) *table {
	return &table{a: a, head: columns, wraps: columns[len(columns)-1:]}
}

// add adds a row. A cell is any value that fmt can print.
func (t *table) add(cells ...any) { t.rows = append(t.rows, cells) }

func (t *table) flush() error {
	return t.flushWith(func(line string) string { return line })
}

// flushWith writes the table. edit may change each line.
func (t *table) flushWith(edit func(line string) string) error {
	shown, err := t.choose()
	if err != nil {
		return err
	}
	if err := t.sort(); err != nil {
		return err
	}
	out := t.render(shown)
	for line := range strings.Lines(out) {
		if err := t.a.println(edit(strings.TrimRight(line, " \n"))); err != nil {
			return err
		}
	}
	if left := len(t.head) - len(shown); left > 0 && t.a.columns == nil {
		fmt.Fprintf(t.a.err, "%s more: -o wide\n", plural(left, "column"))
	}
	return nil
}

// choose returns the columns to show as indexes of head.
func (t *table) choose() ([]int, error) {
	var shown []int
	if t.a.columns != nil {
		for _, name := range t.a.columns {
			i, err := t.column("columns", name)
			if err != nil {
				return nil, err
			}
			shown = append(shown, i)
		}
		return shown, nil
	}
	return t.fitting(2, func(c int) int {
		if slices.Contains(t.wraps, t.head[c]) {
			return min(t.wide(c), spared)
		}
		return t.wide(c)
	}), nil
}

// fitting returns the columns that fit the terminal with a gap between two of them.
func (t *table) fitting(gap int, wide func(column int) int) (shown []int) {
	for i := range t.head {
		shown = append(shown, i)
	}
	width := t.a.width()
	if t.a.format != formatTable || width == 0 {
		return shown
	}
	for _, name := range t.spare {
		total := gap * (len(shown) - 1)
		for _, c := range shown {
			total += wide(c)
		}
		if total <= width {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return t.head[i] == name })
	}
	return shown
}

// check checks --sort and --columns, before a command sends a request.
func (t *table) check() error {
	if t.a.columns != nil && len(t.a.columns) == 0 {
		return usagef("--columns: want some of %s", strings.Join(t.head, ","))
	}
	for flag, names := range map[string][]string{"columns": t.a.columns, "sort": t.a.sort} {
		for _, name := range names {
			if _, err := t.column(flag, strings.TrimPrefix(name, "-")); err != nil {
				return err
			}
		}
	}
	return nil
}

// column finds a column by its name or an unambiguous prefix of it.
func (t *table) column(flag, name string) (int, error) {
	found := -1
	for i, h := range t.head {
		switch {
		case strings.EqualFold(h, name):
			return i, nil
		case len(name) < len(h) && strings.EqualFold(h[:len(name)], name):
			if found >= 0 {
				return 0, usagef("--%s %s is ambiguous: %s, %s", flag, name, t.head[found], h)
			}
			found = i
		}
	}
	if found < 0 {
		return 0, usagef("--%s %s: no such column: want some of %s", flag, name, strings.Join(t.head, ","))
	}
	return found, nil
}

// sort sorts the rows by the columns of --sort, in descending order after a "-".
func (t *table) sort() error {
	type key struct{ column, sign int }
	var keys []key
	for _, name := range t.a.sort {
		k := key{sign: 1}
		if rest, ok := strings.CutPrefix(name, "-"); ok {
			name, k.sign = rest, -1
		}
		var err error
		if k.column, err = t.column("sort", name); err != nil {
			return err
		}
		keys = append(keys, k)
	}
	slices.SortStableFunc(t.rows, func(x, y []any) int {
		for _, k := range keys {
			if c := compare(x[k.column], y[k.column]); c != 0 {
				return k.sign * c
			}
		}
		return 0
	})
	return nil
}

// compare orders numbers by value and before all other cells, which it orders as text.
func compare(x, y any) int {
	m, isM := number(x)
	n, isN := number(y)
	switch {
	case isM && isN:
		return cmp.Compare(m, n)
	case isM:
		return -1
	case isN:
		return 1
	}
	return cmp.Compare(cell(x), cell(y))
}

// number returns the value of a cell, if it is a number.
func number(v any) (float64, bool) {
	if q, ok := v.(quantity); ok {
		return q.n, !math.IsNaN(q.n)
	}
	switch v := v.(type) {
	case maybe.Number:
		return float64(v), v.Known()
	case int, int64, uint8, uint16, uint32, uint64:
		n, err := strconv.ParseFloat(fmt.Sprint(v), 64)
		return n, err == nil
	}
	return 0, false
}

// render returns the table as text with numbers to the right, or as CSV.
func (t *table) render(shown []int) string {
	w := pretty.NewWriter()
	csv := t.a.format == formatCSV
	header := make(pretty.Row, len(shown))
	config := make([]pretty.ColumnConfig, len(shown))
	for i, c := range shown {
		header[i] = t.head[c]
		config[i] = pretty.ColumnConfig{Number: i + 1, Align: text.AlignLeft, AlignHeader: text.AlignLeft}
		if t.numeric(c) {
			config[i].Align, config[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	w.AppendHeader(header)
	for _, row := range t.rows {
		r := make(pretty.Row, len(shown))
		for i, c := range shown {
			r[i] = cell(row[c])
			if q, ok := row[c].(quantity); ok && csv && !math.IsNaN(q.n) {
				r[i] = cmp.Or(q.exact, strconv.FormatFloat(q.n, 'f', -1, 64))
			} else if csv && r[i] == "-" {
				r[i] = ""
			}
		}
		w.AppendRow(r)
	}
	if csv {
		return w.RenderCSV()
	}
	style := pretty.StyleDefault
	style.Options = pretty.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatDefault
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	w.SetStyle(style)
	t.narrow(shown, config)
	w.SetColumnConfigs(config)
	return w.Render()
}

// Widths of a column whose text wraps, in characters. Values are defined by this project.
const (
	narrowest = 16 // it never becomes narrower
	spared    = 40 // it keeps this width before other columns are left out
)

// wide returns the width of a column.
func (t *table) wide(column int) int {
	most := len([]rune(t.head[column]))
	for _, row := range t.rows {
		most = max(most, widest(cell(row[column])))
	}
	return most
}

// narrow reduces the widths of the columns that wrap, the widest one first, until the table
// fits the terminal.
func (t *table) narrow(shown []int, config []pretty.ColumnConfig) {
	width := t.a.width()
	if t.a.format != formatTable || width == 0 {
		return
	}
	wide := make([]int, len(shown))
	excess := 2*(len(shown)-1) - width
	for i, c := range shown {
		wide[i] = t.wide(c)
		excess += wide[i]
	}
	for ; excess > 0; excess-- {
		most := -1
		for i, c := range shown {
			if slices.Contains(t.wraps, t.head[c]) && wide[i] > narrowest && (most < 0 || wide[i] > wide[most]) {
				most = i
			}
		}
		if most < 0 {
			return
		}
		wide[most]--
		config[most].WidthMax, config[most].WidthMaxEnforcer = wide[most], text.WrapSoft
	}
}

// numeric reports whether all known cells of a column are numbers.
func (t *table) numeric(column int) bool {
	numbers := 0
	for _, row := range t.rows {
		switch _, ok := number(row[column]); {
		case ok:
			numbers++
		case cell(row[column]) != "-":
			return false
		}
	}
	return numbers > 0
}

func widest(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, len([]rune(strings.TrimRight(line, " \n"))))
	}
	return most
}

// width returns COLUMNS or the width of the terminal, or 0 if standard output is none.
func (a *app) width() int {
	if n, err := strconv.Atoi(a.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if f, ok := a.out.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil {
			return n
		}
	}
	return 0
}

// tableFlags adds the flags of a command that shows a table with columns.
func (a *app) tableFlags(c *cobra.Command, columns ...string) {
	c.Flags().StringSliceVar(&a.sort, "sort", nil, "columns to sort by, the first one first; -NAME sorts in descending order")
	c.Flags().StringSliceVar(&a.columns, "columns", nil, "columns to show, in this order")
	completeColumns(c, columns)
}

// stream is a table that prints each row at once. formats determine the widths of the columns.
type stream struct {
	*table
	formats []string
}

// shown returns the columns that fit the terminal.
func (s *stream) shown() []int {
	return s.fitting(1, func(c int) int { return len(fmt.Sprintf(s.formats[c], "")) })
}

// begin prints the header.
func (s *stream) begin() error {
	var cells []any
	for _, name := range s.head {
		cells = append(cells, name)
	}
	if n := len(cells) - len(s.shown()); n > 0 {
		fmt.Fprintf(s.a.err, "%s more: -o wide\n", plural(n, "column"))
	}
	return s.print(cells)
}

// print prints a row.
func (s *stream) print(cells []any) error {
	var line []string
	for _, i := range s.shown() {
		line = append(line, fmt.Sprintf(s.formats[i], cell(cells[i])))
	}
	return s.a.println(strings.TrimRight(strings.Join(line, " "), " "))
}
