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

// wantJSON tells whether the output is one JSON value.
func (a *app) wantJSON() bool { return a.format == formatJSON }

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

// quantity is a number that people read with its unit or in another precision: tables
// have the text, sorting and CSV the number.
type quantity struct {
	n     float64
	text  string
	exact string // for CSV, where n has fewer digits
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

func bytesCell(n uint64) quantity { return quantity{n: float64(n), text: bytesText(n)} }

// String gives the text.
func (q quantity) String() string { return q.text }

// unmeasured is the cell of a number that is not known.
var unmeasured = quantity{n: math.NaN(), text: "-"}

// countCell is a number of which -1 says that it is not known.
func countCell(n int) any {
	if n < 0 {
		return unmeasured
	}
	return n
}

// pinnedCell is a size of which -1 or maybe.Unknown says that it is not known.
func pinnedCell[T int64 | maybe.Number](n T) quantity {
	if !(n >= 0) {
		return unmeasured
	}
	return bytesCell(uint64(n))
}

// micros gives nanoseconds as microseconds; a negative time was not reached.
func micros(ns int64) quantity {
	if ns < 0 {
		return unmeasured
	}
	us := float64(ns) / 1e3
	return quantity{n: us, text: strconv.FormatFloat(us, 'f', 1, 64)}
}

// duration gives a time as people read it, in CSV in nanoseconds; a negative one is
// not known.
func duration(ns int64, round time.Duration) quantity {
	if ns < 0 {
		return unmeasured
	}
	return quantity{n: float64(ns), text: time.Duration(ns).Round(round).String()}
}

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
