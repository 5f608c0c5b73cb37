package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/trace/probe"
)

// report summarizes a recording and draws a picture with a bar for each stage. The error for
// another file names the line.
func TestTraceReport(t *testing.T) {
	dir := t.TempDir()
	file, svg := filepath.Join(dir, "record"), filepath.Join(dir, "out.svg")
	lines := `{"node":1,"total_ns":3000,"stages_ns":{"ring":1000,"page_in":2000}}
{"node":1,"total_ns":5000,"stages_ns":{"ring":1000,"page_in":4000}}
`
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, said bytes.Buffer
	s := streams{out: &out, err: &said, getenv: func(string) string { return "" }}
	if code := run(t.Context(), []string{"trace", "report", file, "--svg", svg}, s); code != exitOK {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	for _, want := range []string{"ring         2     1.0     1.0     1.0", "page_in      2     2.0     4.0     4.0", "total        2     3.0     5.0     5.0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	picture, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">time of a fault, us<", ">2 faults in the order in which they began, a bar each<", "the darker a cell, the more (up to 1)<"} {
		if !strings.Contains(string(picture), want) {
			t.Errorf("the picture has no %q:\n%s", want, picture)
		}
	}
	bars, heat := 0, 0
	for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "path" {
			var rectangles int
			var fill string
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "d":
					rectangles = strings.Count(a.Value, "Z")
				case "style":
					fill, _, _ = strings.Cut(strings.TrimPrefix(a.Value, "fill:"), ";")
				}
			}
			if fill == "#7F2704" {
				heat += rectangles
			} else if slices.ContainsFunc(stageColours, func(c color.NRGBA) bool { return fill == fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }) {
				bars += rectangles
			}
		}
	}
	if bars != 10+4 || heat != 2 { // the legend, and two stages of two faults with different times
		t.Errorf("%d rectangles, %d of the heat map", bars, heat)
	}
	if err := os.WriteFile(file, []byte(lines+"nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said.Reset()
	if code := run(t.Context(), []string{"trace", "report", file}, s); code != exitFailed || !strings.Contains(said.String(), "line 3") {
		t.Errorf("exit code %d: %s", code, said.String())
	}
}

// The halves of faults from two machines are joined by block and duration only: the clocks are
// far apart here.
func TestTraceReportJoins(t *testing.T) {
	dir := t.TempDir()
	write := func(name, lines string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	sender := write("sender", `{"half":"sender","source":2,"transaction":7,"sequence":1,"start_ns":9000000,"total_ns":11000,"stages_ns":{"ring":1000,"send":2000,"resend":7000,"complete":1000}}
{"half":"sender","source":2,"transaction":7,"sequence":1,"start_ns":9900000,"total_ns":21000,"stages_ns":{"ring":1000,"send":2000,"resend":17000,"complete":1000}}
{"half":"sender","source":2,"transaction":8,"sequence":1,"start_ns":9990000,"total_ns":1000,"stages_ns":{"resend":1000}}
`)
	driver := write("driver", `{"half":"driver","kind":"minor","source":2,"transaction":7,"sequence":1,"start_ns":100,"total_ns":4000,"stages_ns":{"drain":1000,"page_in":3000}}
{"half":"driver","kind":"minor","source":2,"transaction":7,"sequence":1,"start_ns":8000,"total_ns":6000,"stages_ns":{"drain":1000,"page_in":5000}}
`)
	var out, said bytes.Buffer
	s := streams{out: &out, err: &said, getenv: func(string) string { return "" }}
	if code := run(t.Context(), []string{"trace", "report", sender, driver}, s); code != exitOK {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	for _, want := range []string{
		"ring          2     1.0     1.0     1.0", "page_in       2     3.0     5.0     5.0",
		"resend        3     3.0    11.0    11.0", "total         3    11.0    21.0    21.0",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if !strings.Contains(said.String(), "1 halves of faults") {
		t.Errorf("it says %q", said.String())
	}
}

// No recording makes the picture or the join panic.
func FuzzTraceReport(f *testing.F) {
	f.Add([]byte(`{"half":"sender","source":2,"start_ns":18446744073709551615,"total_ns":18446744073709551615,"stages_ns":{"ring":-9223372036854775808,"resend":1}}
{"half":"driver","source":2,"stages_ns":{"page_in":9223372036854775807}}
`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := readEvents(bytes.NewReader(b))
		if err != nil {
			return
		}
		list, _ = joinHalves([][]probe.Event{list})
		if d := xml.NewDecoder(bytes.NewReader(drawEvents(list))); d != nil {
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
