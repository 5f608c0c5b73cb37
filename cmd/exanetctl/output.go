package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// wantJSON tells whether the output is for programs.
func (a *app) wantJSON() bool { return a.format == "json" }

// printJSON writes v as one JSON value and a newline.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	if a.pretty {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}

// table collects rows and writes them in columns.
type table struct {
	out  io.Writer
	text bytes.Buffer
	w    *tabwriter.Writer
}

func (a *app) table(columns ...string) *table {
	t := &table{out: a.out}
	t.w = tabwriter.NewWriter(&t.text, 0, 8, 2, ' ', 0)
	t.row(columns)
	return t
}

// row adds cells; anything that fmt can print is a cell.
func (t *table) row(cells []string) {
	// A tabwriter's errors are its writer's, and a buffer has none.
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = cell(c)
	}
	t.row(row)
}

// cell prints one value: an empty text as "-", a bool as yes or no.
func cell(v any) string {
	switch v := v.(type) {
	case string:
		if v == "" {
			return "-"
		}
		return v
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []string:
		return cell(strings.Join(v, ","))
	}
	return fmt.Sprint(v)
}

func (t *table) flush() error {
	return t.flushWith(func(line string) string { return line })
}

// flushWith writes the lines, each as edit gives it back.
func (t *table) flushWith(edit func(line string) string) error {
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	for line := range strings.Lines(t.text.String()) {
		if _, err := fmt.Fprintln(t.out, edit(strings.TrimRight(line, " \n"))); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
	return nil
}

// bytesText prints a size with a binary unit where it is a whole number of it.
func bytesText(n uint64) string {
	for _, u := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatUint(n/u.size, 10) + " " + u.name
		}
	}
	return strconv.FormatUint(n, 10) + " B"
}

// micros prints nanoseconds as microseconds; a negative time was not reached.
func micros(ns int64) string {
	if ns < 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(ns)/1e3, 'f', 1, 64)
}

// ageText prints a duration in seconds' steps.
func ageText(ns int64) string { return time.Duration(ns).Round(time.Second).String() }

// terminal tells whether w is a terminal.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Colours of the words ok, warning and error (ECMA-48, SGR).
const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	plain  = "\x1b[0m"
)

// colours tells whether w may have colours: a terminal, and the user has not
// set NO_COLOR (no-color.org) or a dumb terminal.
func colours(w io.Writer, getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && terminal(w)
}
