package main

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// study measures every combination once with its own processes and prints CSV.
func TestStudy(t *testing.T) {
	dir := programs(t)
	code, out, errs := execute(t, dir, "bin/exanetctl study --methods gup,uffd --policies p1,pa --sizes 4KiB,20000 --patterns random,zipf --probabilities 0,0.5 --link-delays 0s,20us --link-losses 0.001 --count 2 --memory any --dir out -o csv", "TMPDIR="+dir)
	if code != exitOK {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(rows) != 1+2*2*2*2*(2*2*2+2) { // times and faults; the last two: by link
		t.Errorf("%d lines, %v:\n%s", len(rows), err, out)
	}
	if n := strings.Count(out, ",any\n"); n != len(rows)-1 {
		t.Errorf("%d lines of memory that is not shared:\n%s", n, out)
	}
	for _, name := range []string{"results.jsonl", "results.csv", "report.html"} {
		if b, err := os.ReadFile(filepath.Join(dir, "out", name)); err != nil || len(b) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if !strings.Contains(errs, "study: 4 KiB, zipf, links of 20µs that lose 0.001") {
		t.Errorf("no progress in %q", errs)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "exanet-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestBenchRefuses(t *testing.T) {
	dir := programs(t)
	for _, line := range []string{
		"bench nothing", "bench faults --count 0", "bench faults --window 0", "bench faults --docs .", "bench faults --memory some", "study --memory none",
		"study --methods sideways", "study --policies p9", "study --patterns none", "study --probabilities 2", "study --sizes 0", "study --link-delays 3", "study --link-delays 2s", "study --link-losses 1", "study --sizes x",
	} {
		if code, _, errs := execute(t, dir, "bin/exanetctl "+line); code != exitUsage {
			t.Errorf("%s: exit code %d, %s", line, code, errs)
		}
	}
}
