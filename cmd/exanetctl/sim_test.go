package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands of docs/simulator.md do what it says, with its file.
func TestSimulatorDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	file := regexp.MustCompile("(?s)```toml\n(.*?)```").FindSubmatch(text)
	if file == nil {
		t.Fatal("docs/simulator.md has no scenario")
	}
	if n := strings.Count(string(file[1]), "\n"); n > 10 {
		t.Errorf("the scenario in ten lines has %d", n)
	}
	if err := os.WriteFile("torus.toml", file[1], 0o600); err != nil {
		t.Fatal(err)
	}
	run := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		for line := range strings.Lines(string(block[1])) {
			code, out, errs := ctl(strings.Fields(line)[1:]...)
			if code != 0 || out == "" {
				t.Errorf("%s: exit code %d\n%s%s", line, code, out, errs)
			}
			run++
		}
	}
	if run < 6 {
		t.Errorf("only %d commands ran", run)
	}
	if svg, err := os.ReadFile("torus.svg"); err != nil || !strings.Contains(string(svg), "driver.policy pa") {
		t.Errorf("%v\n%s", err, svg)
	}
}

// Wrong files and flags are exit code 2, and a violation is 1; each says what to do.
func TestSimErrors(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := put("bad.toml", "sead = 1\n")
	// A transfer cannot end within 10 us of simulated time.
	late := put("late.toml", "limit = \"10us\"\nworkload = [{ kind = \"write\", from = 0, to = 1, size = \"1MiB\" }, { kind = \"write\", from = 1, to = 0, size = \"1MiB\" }]\n")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"sim run " + bad, 2, "bad.toml:1: unknown key"},
		{"sim run " + put("rec.toml", "workload = [{ kind = \"recording\", file = \"no.rec\" }]"), 2, "no.rec: no such file"},
		{"sim run " + put("dir.toml", "workload = [{ kind = \"recording\", file = \".\" }]"), 2, "no regular file"},
		{"sim run " + put("bad-rec.toml", "workload = [{ kind = \"recording\", file = \"bad.toml\" }]"), 2, "not a recording"},
		{"sim run nowhere", 2, "incast-16"},
		{"sim run " + filepath.Join(dir, "none.toml"), 2, "no such file"},
		{"sim run " + dir, 2, "no regular file"},
		{"sim run /dev/zero", 2, "no regular file"},
		{"sim run one-hop --timeline 1", 2, "the transfers are 0 to 0"},
		{"sim run one-hop --vary seed=1,,2", 2, "want KEY=VALUE,VALUE"},
		{"sim show nowhere", 2, "incast-16"},
		{"sim run one-hop --set x", 2, "want KEY=VALUE"},
		{"sim run one-hop --set driver.policy=p9", 2, "p9"},
		{"sim run one-hop --seed -1", 2, "--seed -1"},
		{"sim run one-hop --seeds 5-1", 2, "want a range"},
		{"sim run one-hop --seeds 1-2 --timeline 0", 2, "of one run"},
		{"sim run one-hop --plot x.svg", 2, "add --vary"},
		{"sim run one-hop --vary seed", 2, "want KEY=VALUE,VALUE"},
		{"sim run one-hop --perfetto " + filepath.Join(dir, "no", "file"), 1, "no such file"},
		{"sim run " + late, 1, "has not ended at 10us"},
		{"sim shrink one-hop", 1, "does not fail with seed 1"},
	} {
		code, out, errs := ctl(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, want %d and %q\n%s%s", c.args, code, c.code, c.want, out, errs)
		}
	}
	code, out, errs := ctl("sim", "shrink", late)
	if code != 0 || strings.Count(out, "kind = 'write'") != 1 {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	code, out, _ = ctl("sim", "run", put("small.toml", out), "-o", "json")
	var v struct {
		Error      *string
		Unfinished int
		Digest     string
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 1 || v.Error == nil || v.Unfinished != 1 || v.Digest == "" {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

// Of one run, the files of events have what the table and the timeline say.
func TestSimFiles(t *testing.T) {
	dir := t.TempDir()
	trace, log := filepath.Join(dir, "trace.json"), filepath.Join(dir, "log")
	levels := filepath.Join(dir, "levels.csv")
	code, out, errs := ctl("sim", "run", "one-hop", "--timeline", "0", "--perfetto", trace, "--log", log)
	if code != 0 || !strings.Contains(out, "page fault reported") || !strings.Contains(out, "1 of 1 completed") {
		t.Fatalf("exit code %d\n%s%s", code, out, errs)
	}
	lines, err := os.ReadFile(log)
	if err != nil || !strings.HasPrefix(out, string(lines)) {
		t.Errorf("%v: the log is not the timeline\n%s", err, lines)
	}
	if b, err := os.ReadFile(trace); err != nil || !json.Valid(b) {
		t.Errorf("%v\n%s", err, b)
	}
	code, out, errs = ctl("sim", "run", "qfdb-all-to-all", "--queues", levels, "-o", "csv")
	if code != 0 || strings.Count(out, ",all-to-all,") != 12 || !strings.Contains(out, "\n0,all-to-all,no,0,1,1048576,") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	b, err := os.ReadFile(levels)
	if lines := strings.Split(strings.TrimSpace(string(b)), "\n"); err != nil || len(lines) < 100 || lines[0] != "ns,from,to,queued,waiting" || !strings.HasSuffix(lines[len(lines)-1], ",0,0") {
		t.Errorf("%v\n%s", err, b)
	}
	code, out, errs = ctl("sim", "run", "one-hop", "--seeds", "1-3", "--vary", "workload.0.absent=0.5,1", "--vary", "driver.policy=p1,pa")
	if code != 0 || strings.Count(out, " to ") != 4*4 {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}
