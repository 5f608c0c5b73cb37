package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/workload"
)

// programs builds pfd and exanetctl into bin/ of a directory, as `make build`
// does.
func programs(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "bin")+"/", "../pfd", ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

// startPFD starts a pfd of two nodes.
func startPFD(t *testing.T, dir string) *workload.DaemonProcess {
	t.Helper()
	return startNodes(t, dir, 2)
}

func startNodes(t *testing.T, dir string, nodes int, flags ...string) *workload.DaemonProcess {
	t.Helper()
	runtime.LockOSThread() // pfd ends with this thread: see StartDaemon
	t.Cleanup(runtime.UnlockOSThread)
	d, err := workload.StartDaemon(t.Context(), filepath.Join(dir, "bin", "pfd"), nodes, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// patience is reached only if something hangs.
const patience = 2 * time.Minute

// execute runs a command line in dir as a user would.
func execute(t *testing.T, dir, line string, env ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	words := strings.Fields(line)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, words[0]), words[1:]...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = dir, &out, &errs, append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() < 0 {
			t.Fatalf("%s: %v\n%s", line, err, errs.String())
		}
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

var (
	backticked = regexp.MustCompile("`([^`]+)`")
	// endless are commands that run until interrupted, or that another test covers.
	endless = []string{"serve", "monitor", "--watch", "reload", "top", "ui"}
)

// readmeCommands returns exanetctl's command lines in the README's table of
// commands. A first cell may name several; only the first one has the program's name.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for row := range strings.Lines(string(text)) {
		const program = "bin/exanetctl "
		if !strings.HasPrefix(row, "| `"+program) {
			continue
		}
		cell, _, _ := strings.Cut(row[1:], "|")
		for _, m := range backticked.FindAllStringSubmatch(cell, -1) {
			line := program + strings.TrimPrefix(m[1], program)
			words := strings.Fields(line)
			placeholder := slices.ContainsFunc(words, func(w string) bool { return len(w) > 1 && strings.ToUpper(w) == w && strings.ToLower(w) != w })
			if placeholder || slices.ContainsFunc(endless, func(e string) bool { return slices.Contains(words, e) }) {
				t.Logf("not run: %s", line)
				continue
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// said has the outputs of the README's commands, after the write of the same table, with two
// nodes and no process attached. Time-outs of a busy machine add faults.
var said = map[string][]string{
	"doctor": {`(?m)^ok +kernel `},
	"status": {`^STATUS +ready\n`, `(?m)^nodes +2$`, `(?m)^pinned +0 B$`},
	"write --size 4KiB --count 200 --dst absent --warm": {`(?m)^transfers +200, 0 failed$`, `(?m)^verified +every byte is right$`, `(?m)^faults +[2-9]\d\d, 200 pages paged in$`, `(?m)^pinned +0 B$`},
	"fault":   {`^DOMAIN +.*DRAIN_US +QUEUE_US +PAGE_IN_US +ANSWER_US +TOTAL_US`, `(?s)(\n1/0 [^\n]* destination +gup +p1 +minor +resolved [^\n]*(\n1/0 [^\n]*)*?){200}`},
	"node":    {`^NODE +ID `, `(?m)^ *0 +0x000000 `, `(?m)^ *1 +0x000001 `},
	"domain":  {`^no process is attached\n$`},
	"channel": {`^no channel is in use `},
	"smmu":    {`^no domain uses a bank `},
	"fifo":    {`(?m)^ *0 +rxfifo +0 +0 +512 `, `(?m)^ *1 +rxfifo +0 +[1-9]\d* +512 `},
	"counter": {`(?m)^1 +faults_minor_total +[2-9]\d\d$`},
}

// Each of the README's commands, in its order, works as the README says.
func TestREADMECommandsRun(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	// The README's commands use the default socket.
	env := "RUNTIME_DIRECTORY=" + filepath.Dir(d.Socket())
	lines := readmeCommands(t)
	if len(lines) != len(said) {
		t.Errorf("%d commands found, want %d: %q", len(lines), len(said), lines)
	}
	for _, line := range lines {
		code, out, errs := execute(t, dir, line, env)
		want := said[strings.TrimPrefix(line, "bin/exanetctl ")]
		if out == "" {
			out, errs = errs, "" // why there is nothing to show
		}
		if code != exitOK || errs != "" || want == nil {
			t.Errorf("%s: exit code %d, standard error %q, standard output %q", line, code, errs, out)
		}
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(out) {
				t.Errorf("%s does not print %s:\n%s", line, w, out)
			}
		}
	}
}

// The first command of the documents against a real pfd, and its JSON if transfers fail.
func TestWriteOfTheIssue(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	at := " --socket " + d.Socket()
	const line = "bin/exanetctl write --from 0 --to 1 --size 4KiB --count 200 --src present --dst absent --method gup --policy p1 -o json"
	decode := func(line string, want int) (r workload.Result, errs string) {
		code, out, errs := execute(t, dir, line+at)
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != want {
			t.Fatalf("%s: exit code %d, want %d, %v, standard output %q, standard error %q", line, code, want, err, out, errs)
		}
		return r, errs
	}
	r, errs := decode(line, exitOK)
	if r.Transfers != 200 || r.Failed != 0 || !r.Verified || r.Error != nil || r.Bytes != 200*4096 ||
		r.Faults < 200 || r.PagesPagedIn != 200 || r.RAPF < 200 || r.Retransmits < 200 || // a busy machine's time-outs add some
		r.PinnedBytes != 0 || r.Waiting != workload.Poll || r.Latency.P50 <= 0 || r.ThroughputGbps <= 0 || errs != "" {
		t.Errorf("%+v, standard error %q", r, errs)
	}
	for _, c := range []struct {
		flags     string
		transfers int
		failed    int
		text      string
	}{
		{"--dst readonly --count 2", 2, 2, "the mapping does not grant this right (fault log of node 1)"},
		{"--dst unmapped", 1, 1, "no mapping at the address (fault log of node 1)"},
		{"--src unmapped", 1, 1, "no mapping at the address (fault log of node 0)"},
		{"--to 2", 0, 0, "this pfd has 0, 1"},
	} {
		r, errs := decode("bin/exanetctl write -o json "+c.flags, exitFailed)
		if r.Transfers != c.transfers || r.Failed != c.failed || r.Error == nil || !strings.Contains(*r.Error, c.text) || !strings.Contains(errs, c.text) || r.PinnedBytes > 0 || r.PinnedBytes.Known() != (r.Transfers > 0) {
			t.Errorf("%s: %+v, standard error %q", c.flags, r, errs)
		}
	}
}

// The table shows the result, also if no transfer arrived.
func TestWriteTable(t *testing.T) {
	dir := programs(t)
	d := startPFD(t, dir)
	for _, c := range []struct {
		flags    string
		code     int
		out, err string
	}{
		{"--dst absent --count 3", exitOK, "every byte is right", ""},
		{"--dst readonly", exitFailed, "nothing arrived", "1 of 1 transfers failed"},
	} {
		code, out, errs := execute(t, dir, "bin/exanetctl write "+c.flags+" --socket "+d.Socket())
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.err) || (errs == "") != (c.err == "") {
			t.Errorf("%s: exit code %d, standard error %q, want %q, in\n%s", c.flags, code, errs, c.out, out)
		}
	}
}

// The command of `make demo` ends with the line of totals.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("the demo takes some seconds: not with -short")
	}
	dir := programs(t)
	code, out, errs := execute(t, dir, "bin/exanetctl demo --bin bin", "TMPDIR="+dir)
	if code != exitOK {
		t.Fatalf("exit code %d, %s\n%s", code, errs, out)
	}
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	if last := lines[len(lines)-1]; !regexp.MustCompile(`^demo: ok, [1-9][0-9]* faults resolved, [1-9][0-9]* bytes verified, 0 bytes pinned$`).MatchString(last) {
		t.Errorf("the last line is %q", last)
	}
	_, tables, _ := strings.Cut(out, "exanetctl channel")
	_, tables, _ = strings.Cut(tables, "\n")
	for line := range strings.Lines(tables) {
		if !strings.HasPrefix(line, "$") && len(line) > 81 {
			t.Errorf("a line of a table is longer than 80: %q", line)
		}
	}
	// The command lines come in this order and are complete: the demo adds no flags.
	rest := out
	for _, want := range []string{
		"write --size 1MiB", "every byte is right", "0 B\n", "bench methods", "absent, by gup", "touched first", "load ",
		"write --count 200", "fault stages", "page_in", "###", "write --size 64MiB", "channel", "ongoing", "fifo", "DEPTH", "fifo_push_total",
		"stopped with exit code 0", "demo: ok",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("no %q where it is due in\n%s", want, out)
		}
		rest = after
	}
	// pfd has ended, and its sockets are removed.
	if left, err := filepath.Glob(filepath.Join(dir, "exanet-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
