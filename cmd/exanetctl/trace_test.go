package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A recording is summarized by its own numbers, and drawn as a picture with a bar for
// each stage; a file that is none is told by its line.
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
	for _, want := range []string{"ring     2      1.0     1.0     1.0", "page_in  2      2.0     4.0     4.0", "total    2      3.0     5.0     5.0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	picture, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	bars := 0
	for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
			bars++
		}
	}
	if bars != 10+4 { // what the colours mean, and two stages of two faults
		t.Errorf("%d rectangles", bars)
	}
	if err := os.WriteFile(file, []byte(lines+"nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said.Reset()
	if code := run(t.Context(), []string{"trace", "report", file}, s); code != exitFailed || !strings.Contains(said.String(), "line 3") {
		t.Errorf("exit code %d: %s", code, said.String())
	}
}
