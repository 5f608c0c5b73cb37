package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A bar shows the progress of a run and is erased at the end.
func TestProgress(t *testing.T) {
	for _, c := range []struct {
		done, total int
		full        int // of 40
		text        string
	}{
		{0, 8, 0, "] 0/8"}, {1, 3, 13, "] 1/3"}, {4, 8, 20, "] 4/8"}, {200, 200, 40, "] 200/200"},
	} {
		var out bytes.Buffer
		bar := &progress{w: &out, total: c.total}
		bar.show(c.done)
		got := out.String()
		if want := "\r[" + strings.Repeat("#", c.full) + strings.Repeat(".", 40-c.full) + c.text; got != want {
			t.Errorf("%d of %d: %q, want %q", c.done, c.total, got, want)
		}
		bar.clear()
		if !strings.HasSuffix(out.String(), "\r\x1b[K") {
			t.Errorf("not erased: %q", out.String())
		}
	}
}

// Not every transfer redraws the bar, because that costs a write to the terminal.
func TestProgressIsDrawnNowAndThen(t *testing.T) {
	var out bytes.Buffer
	bar := &progress{w: &out, total: 1000, last: time.Now().Add(time.Hour)}
	for i := range 1000 {
		bar.show(i)
	}
	bar.clear()
	if out.Len() != 0 {
		t.Errorf("drawn before its time, or erased without having been drawn: %q", out.String())
	}
}

// The result replaces the bar.
func TestProgressGivesItsLine(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	m := startTmux(t, 120, 24, filepath.Join(dir, "bin", "exanetctl")+" write --count 5 --socket "+d.Socket())
	if text := m.until(`exit code 0`); !strings.HasPrefix(text, "WRITE ") || !strings.Contains(text, "\nthroughput ") {
		t.Errorf("on the screen:\n%s", text)
	}
}
