package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/maybe"
)

// The output formats (-o).
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatCSV   = "csv"
)

func formats() []string { return []string{formatTable, formatWide, formatJSON, formatCSV} }

// wantJSON reports whether the output is one JSON value.
func (a *app) wantJSON() bool { return a.format == formatJSON }

// println writes a line to standard output.
func (a *app) println(v ...any) error {
	_, err := fmt.Fprintln(a.out, v...)
	return outputError(err)
}

// remark writes a line after a table: to standard output, or to standard error if that is CSV.
func (a *app) remark(format string, args ...any) error {
	to := a.out
	if a.format == formatCSV {
		to = a.err
	}
	_, err := fmt.Fprintf(to, format+"\n", args...)
	return outputError(err)
}

// outputError describes an error of standard output; it returns nil for nil.
func outputError(err error) error {
	if err != nil {
		err = fmt.Errorf("standard output: %w", err)
	}
	return err
}

// printJSON writes v as one JSON value and a newline.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	if a.pretty {
		enc.SetIndent("", "  ")
	}
	return outputError(enc.Encode(v))
}

// cell formats a value: an empty text as "-", a bool as yes or no.
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

// quantity is a number that tables show as text, with a unit or rounded. Sorting and CSV use
// the number.
type quantity struct {
	n     float64
	text  string
	exact string // for CSV, if n has too few digits
}

// bytesText formats a size with the largest binary unit of which it is a multiple.
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

func bytesCell(n uint64) quantity { return quantity{n: float64(n), text: bytesText(n)} }

// String returns the text.
func (q quantity) String() string { return q.text }

// unmeasured is the cell of an unknown number.
var unmeasured = quantity{n: math.NaN(), text: "-"}

// countCell returns the cell of a number for which -1 means unknown.
func countCell(n int) any {
	if n < 0 {
		return unmeasured
	}
	return n
}

// when returns the cell of a value, which is empty if the value is unknown.
func when(known bool, v any) any {
	if known {
		return v
	}
	return ""
}

// pinnedCell returns the cell of a size for which -1 or maybe.Unknown means unknown.
func pinnedCell[T int64 | maybe.Number](n T) quantity {
	if !(n >= 0) {
		return unmeasured
	}
	return bytesCell(uint64(n))
}

// micros returns nanoseconds as a cell in microseconds. A negative time is unknown.
func micros(ns int64) quantity {
	if ns < 0 {
		return unmeasured
	}
	us := float64(ns) / 1e3
	return quantity{n: us, text: strconv.FormatFloat(us, 'f', 1, 64)}
}

// duration returns a time in nanoseconds as a cell with a rounded text. A negative time is
// unknown.
func duration(ns int64, round time.Duration) quantity {
	if ns < 0 {
		return unmeasured
	}
	return quantity{n: float64(ns), text: time.Duration(ns).Round(round).String()}
}

// terminal reports whether w is a terminal.
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

// colours reports whether output to w may have colours: w is a terminal, and the environment
// has no NO_COLOR (no-color.org) and no dumb terminal.
func colours(w io.Writer, getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && terminal(w)
}

// watchMin is the shortest interval of --watch, so that it does not keep pfd busy.
const watchMin = 100 * time.Millisecond

// clearScreen moves the cursor home and clears the screen (ECMA-48, CUP and ED).
const clearScreen = "\x1b[H\x1b[2J"

func (a *app) watchFlag(c *cobra.Command) {
	c.Flags().DurationVar(&a.watch, "watch", 0, "repeat at this interval until interrupted, such as 1s")
}

// watched returns a command that repeats show with --watch. On a terminal each output replaces
// the last one. Otherwise it follows the last one, for tables after an empty line.
func (a *app) watched(show func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("watch") {
			return show(cmd, args)
		}
		if a.watch < watchMin {
			return usagef("--watch %v: want %v or more", a.watch, watchMin)
		}
		screen := terminal(a.out) && !a.wantJSON()
		tick := time.NewTicker(a.watch)
		defer tick.Stop()
		for first := true; ; first = false {
			switch {
			case screen:
				fmt.Fprint(a.out, clearScreen)
			case !first && !a.wantJSON():
				fmt.Fprintln(a.out)
			}
			err := show(cmd, args)
			if cmd.Context().Err() != nil {
				return nil // interrupted
			}
			if err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-cmd.Context().Done():
				return nil
			}
		}
	}
}
