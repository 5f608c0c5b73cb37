package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/maybe"
	"github.com/exanet/pfd/internal/workload"
	"github.com/exanet/pfd/trace/probe"
)

// ctlWide is like ctl, on a terminal with a width.
func ctlWide(columns string, args ...string) (out, errs string) {
	var o, e bytes.Buffer
	run(context.Background(), args, streams{in: &bytes.Buffer{}, out: &o, err: &e, getenv: func(name string) string {
		if name == "COLUMNS" {
			return columns
		}
		return ""
	}})
	return o.String(), e.String()
}

// Every table fits 80 columns and states how many columns it omits.
func TestTablesFitTheTerminal(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, object := range []string{"node", "domain", "channel", "transaction", "smmu", "fifo", "counter", "fault", "status"} {
		all := firstLine(ctlWide("", object, "--socket", d.socket))
		for _, width := range []int{60, 80, 120} {
			out, said := ctlWide(strconv.Itoa(width), object, "--socket", d.socket)
			if got := widest(out); width >= 80 && got > width {
				t.Errorf("%s: %d columns wide, the terminal has %d:\n%s", object, got, width, out)
			}
			shown := strings.Fields(firstLine(out, ""))
			left := len(strings.Fields(all)) - len(shown)
			if object != "fifo" && (left > 0) != strings.Contains(said, "-o wide") {
				t.Errorf("%s at %d: %d columns left out, it says %q", object, width, left, said)
			}
		}
		if wide, _ := ctlWide("40", object, "-o", "wide", "--socket", d.socket); firstLine(wide, "") != all {
			t.Errorf("%s -o wide: %q, want %q", object, firstLine(wide, ""), all)
		}
	}
}

func firstLine(out, _ string) string {
	line, _, _ := strings.Cut(out, "\n")
	return line
}

func TestSortColumnsCSV(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, c := range []struct {
		line string
		want []string
	}{
		{"channel --columns channel,size --sort size", []string{"CHANNEL    SIZE", "0/3/0     4 KiB", "0/3/5    4097 B", "0/3/6     1 MiB"}},
		{"channel --columns size --sort -size -o csv", []string{"SIZE", "1048576", "4097", "4096"}},
		{"domain --columns pid,fail --sort -pid", []string{" PID  FAILED", "4712       0", "4711       1"}},
		{"fault --columns node --sort node", nil}, // no such column
		{"fault --columns dom,answer_us -o csv", []string{"DOMAIN,ANSWER_US", "1/0,0.1", "0/3,"}},
		{"fault --columns dom,answer --sort answer,dom", []string{"DOMAIN  ANSWER_US", "1/0           0.1", "0/3             -"}},
		{"node list --columns node", []string{"NODE", "   0", "   1"}},
		{"node ls --columns node", []string{"NODE", "   0", "   1"}},
	} {
		code, out, errs := ctl(append(strings.Fields(c.line), "--socket", d.socket)...)
		got := strings.Split(strings.TrimRight(out, "\n"), "\n")
		if c.want == nil {
			if code != exitUsage {
				t.Errorf("%s: exit code %d", c.line, code)
			}
			continue
		}
		if code != exitOK || !slices.Equal(got, c.want) {
			t.Errorf("%s: exit code %d, %s:\n%s\nwant\n%s", c.line, code, errs, out, strings.Join(c.want, "\n"))
		}
	}
}

// The CSV of transfers at once contains only rows.
func TestOrderCSV(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{streams: streams{out: &out, err: &errs, getenv: os.Getenv}, format: formatCSV}
	if err := a.printOrder(workload.Result{Transfers: 1, Bytes: 4096, Verified: true}, []workload.Completion{{Size: 4096, Class: "normal", Done: true, LatencyUS: 1.5}}); err != nil {
		t.Fatal(err)
	}
	if want := "PLACE,TRANSFER,SIZE,CLASS,LATENCY_US,OUTCOME\n1,0,4096,normal,1.5,done\n"; out.String() != want || !strings.HasPrefix(errs.String(), "1 transfers, 0 failed") {
		t.Errorf("got %q and %q, want %q", out.String(), errs.String(), want)
	}
}

// A table without columns to omit wraps its text.
func TestLastColumnWraps(t *testing.T) {
	long := strings.Repeat("word ", 40)
	for _, width := range []int{60, 80} {
		var out bytes.Buffer
		a := &app{streams: streams{out: &out, err: &bytes.Buffer{}, getenv: func(string) string { return strconv.Itoa(width) }}, format: formatTable}
		if err := a.printReport(report{Checks: []check{{Name: "kernel", Verdict: verdictOK, Found: long, Need: long}}}); err != nil {
			t.Fatal(err)
		}
		if got := widest(out.String()); got > width || strings.Count(out.String(), "word") != 80 {
			t.Errorf("at %d: %d columns wide:\n%s", width, got, out.String())
		}
	}
}

// Completion offers the values of a flag and the existing IDs.
func TestCompletionOfValues(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	fleet := t.TempDir()
	if err := os.WriteFile(filepath.Join(fleet, "fleet.json"), fmt.Appendf(nil, `{"options":{"nodes":3},"guests":[{"pid":%d},{"pid":0}]}`, os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := ctl("qemu", "list", "--dir", fleet); code != exitOK || !strings.Contains(out, "0  ended      3") {
		t.Errorf("qemu list: exit code %d, %s:\n%s", code, errs, out)
	}
	if code, out, errs := ctl("qemu", "list", "--dir", t.TempDir(), "-j"); code != exitOK || out != `{"version":1,"guests":[]}`+"\n" || !strings.Contains(errs, "no guests run") {
		t.Errorf("qemu list of none: exit code %d, %s: %s", code, errs, out)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"write", "--method", ""}, []string{"gup", "touch", "uffd", "populate"}},
		{[]string{"write", "--policy", ""}, []string{"p1", "p4", "pa"}},
		{[]string{"write", "--dst", ""}, []string{"absent", "swapped"}},
		{[]string{"node", "-o", ""}, []string{"table", "wide", "json", "csv"}},
		{[]string{"domain", "show", "--socket", d.socket, ""}, []string{"0/3", "1/0"}},
		{[]string{"node", "--registers", ""}, []string{"pl", "smmu"}},
		{[]string{"fifo", "show", "--socket", d.socket, ""}, []string{"0"}},
		{[]string{"domain", "show", "--columns", ""}, []string{"pid", "pages_in"}},
		{[]string{"channel", "--sort", "size,-"}, []string{"size,-age"}},
		{[]string{"counter", "--columns", ""}, []string{"value", "what"}},
		{[]string{"fault", "stages", "--columns", ""}, []string{"p50_us"}},
		{[]string{"counter", "--socket", d.socket, ""}, []string{"0", "timeouts_total", "attachments_total"}},
		{[]string{"write", "--socket", d.socket, "--from", ""}, []string{"0", "1"}},
		{[]string{"perf", "lat", "--socket", d.socket, "--to", ""}, []string{"0", "1"}},
		{[]string{"fault", "monitor", "--socket", d.socket, ""}, []string{"0", "1"}},
		{[]string{"capture", "--socket", d.socket, ""}, []string{"0", "1"}},
		{[]string{"qemu", "run", "--dir", fleet, ""}, []string{"0", "1"}},
	} {
		code, out, errs := ctl(append([]string{"__complete"}, c.args...)...)
		lines := strings.Split(out, "\n")
		if twice := slices.Clone(lines); len(slices.Compact(twice)) != len(lines) {
			t.Errorf("%q: a word twice in %q", c.args, out)
		}
		for _, want := range c.want {
			if code != exitOK || !slices.Contains(lines, want) {
				t.Errorf("%q: exit code %d, no %q in %q (%s)", c.args, code, want, out, errs)
			}
		}
	}
}

// The output of a transfer fits 80 columns and contains only what was measured.
func TestTransferTable(t *testing.T) {
	no := maybe.Unknown()
	many := workload.Result{
		Transfers: 100, Verified: true, Bytes: 100 << 30, Faults: 26214400, PagesPagedIn: 26214400,
		RAPF: 123456, Retransmits: 123456, Timeouts: 12345, Guards: 12345, CountersNode: 15, CountersOthers: 3,
		Latency:        workload.Latency{P50: 123456.7, P90: 234567.8, P99: 345678.9, Mean: 123456.7, Min: 1234.5, Max: 999999.9},
		ThroughputGbps: 12.345, Waiting: workload.Wait,
	}
	one := workload.Result{
		Transfers: 1, Verified: true, Bytes: 4096, Faults: no, PagesPagedIn: no, RAPF: no, Retransmits: no, Timeouts: no, Guards: no,
		CountersOthers: no, PinnedBytes: no, Latency: workload.Latency{P50: 398.4, P90: no, P99: no, Mean: 398.4, Min: 398.4, Max: 398.4}, ThroughputGbps: 0.1, Waiting: workload.Poll,
	}
	q := workload.Request{Options: workload.Options{To: 1, Method: "populate", Policy: "adaptive"}, Size: 1<<32 - 1, Src: workload.Alternate, Dst: workload.Alternate}
	for _, c := range []struct {
		name      string
		r         workload.Result
		has, none []string
	}{
		{"many", many, []string{"node 15: 123456", "these include those of 3 other domains", "p90 234567.8 us", "median"}, []string{"pfd slept"}},
		{"one", one, []string{"retransmissions  - ", "pinned           -\n", "latency          398.4 us, polling; pfd slept"}, []string{"p90", "median"}},
	} {
		var out bytes.Buffer
		a := &app{streams: streams{out: &out, err: &bytes.Buffer{}, getenv: func(string) string { return "80" }}, format: formatTable}
		if err := a.printResult(q, c.r); err != nil {
			t.Fatal(err)
		}
		// Join wrapped lines.
		text := regexp.MustCompile(`\n +`).ReplaceAllString(out.String(), " ")
		for _, w := range c.has {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in\n%s", c.name, w, out.String())
			}
		}
		for _, w := range c.none {
			if strings.Contains(text, w) {
				t.Errorf("%s: %q in\n%s", c.name, w, out.String())
			}
		}
		if widest(out.String()) > 80 {
			t.Errorf("%s: %d columns:\n%s", c.name, widest(out.String()), out.String())
		}
	}
	// Traced faults are printed line by line.
	var out bytes.Buffer
	a := &app{streams: streams{out: &out, err: &bytes.Buffer{}, getenv: func(string) string { return "80" }}, format: formatTable}
	if err := errors.Join(a.beginTraced(), a.printTraced(probe.Event{Page: 0x7f0000001000, Side: "destination", Kind: "permission", TotalNS: 12345678})); err != nil || widest(out.String()) > 80 || !strings.Contains(out.String(), "12345.7") {
		t.Errorf("%v, %d columns:\n%s", err, widest(out.String()), out.String())
	}
}
