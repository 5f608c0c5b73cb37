package tracing

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/exanet/pfd/trace/probe"
)

// shown matches the parts of a command's output that do not change between runs: names of
// columns and of sources, and keys of JSON.
var shown = regexp.MustCompile(`\b[A-Z][A-Z0-9_]{2,}\b|^source \S+|"[a-z_]+"`)

// The commands of docs/tracing.md work in their order, with the tests' bpffs.
func TestDocsCommands(t *testing.T) {
	r := newRig(t)
	text, err := os.ReadFile("../../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	heads := map[string][]string{} // by command: the names of columns, rows or keys that the document shows
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			if c, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok {
				commands = append(commands, c)
			} else if len(commands) > 0 {
				last := commands[len(commands)-1]
				heads[last] = append(heads[last], shown.FindAllString(line, -1)...)
			}
		}
	}
	if len(commands) < 6 {
		t.Fatalf("only %q", commands)
	}
	// Run `trace off` last: the commands after it in the document need the maps.
	off := "exanetctl trace off"
	for i, c := range commands {
		if c == off {
			commands = append(append(commands[:i:i], commands[i+1:]...), off)
			break
		}
	}
	for _, c := range commands {
		args := strings.Fields(strings.ReplaceAll(c, probe.DefaultDir, r.dir))
		switch {
		case strings.Contains(c, "$("):
			r.shell(c)
		case args[0] == "exanetctl":
			out := r.ctl(append(args[1:], "--bpffs", r.dir)...)
			if args[2] == "on" {
				r.before = r.metrics()
				r.write("--dst", "absent", "--count", "100")
				r.exact()
			} else if args[2] != "off" && strings.Count(out, "\n") < 2 {
				t.Errorf("%s prints %q", c, out)
			}
			lacks(t, c, out, heads[c])
		case args[0] == "bpftool", args[0] == "cat":
			path, err := exec.LookPath(args[0])
			if err != nil {
				t.Logf("%s is not installed", args[0])
				continue
			}
			out, err := exec.Command(path, args[1:]...).CombinedOutput()
			if err != nil || strings.Count(string(out), "\n") < 2 {
				t.Errorf("%s: %v %s", c, err, out)
			}
			lacks(t, c, string(out), heads[c])
		default:
			t.Errorf("unknown command %q", c)
		}
	}
	if list, err := filepath.Glob(filepath.Join(r.dir, "*")); err != nil || len(list) != 0 {
		t.Errorf("remaining pins: %v %v", list, err)
	}
}

// lacks reports what the document shows of a command's output and the command does not print.
func lacks(t *testing.T, command, out string, want []string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("%s does not print %s:\n%s", command, w, out)
		}
	}
}

// shell runs a command for some seconds during transfers, and checks that it counts records.
func (r *rig) shell(command string) {
	r.t.Helper()
	if _, err := exec.LookPath(strings.Fields(command)[0]); err != nil {
		r.t.Logf("%v", err)
		return
	}
	ctl := "$(" + filepath.Join(bin, "exanetctl") + " --socket " + r.socket
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(command, "$(exanetctl", ctl))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil || !regexp.MustCompile(`@records: [1-9]`).MatchString(out.String()) {
				r.t.Errorf("%s: %v %s", command, err, out.String())
			}
			return
		default:
			r.write("--dst", "absent", "--count", "10")
		}
	}
}
