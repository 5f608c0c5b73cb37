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

// The commands of docs/tracing.md work in their order, with the bpffs of the tests.
func TestDocsCommands(t *testing.T) {
	r := newRig(t)
	text, err := os.ReadFile("../../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			if c, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok {
				commands = append(commands, c)
			}
		}
	}
	if len(commands) < 6 {
		t.Fatalf("only %q", commands)
	}
	// What is read after `trace off` in the document is read before.
	off := "exanetctl trace off"
	for i, c := range commands {
		if c == off {
			commands = append(append(commands[:i:i], commands[i+1:]...), off)
			break
		}
	}
	for _, c := range commands {
		args := strings.Fields(strings.ReplaceAll(c, probe.DefaultDir, r.dir))
		switch args[0] {
		case "exanetctl":
			out := r.ctl(append(args[1:], "--bpffs", r.dir)...)
			if args[2] == "on" {
				r.before = r.metrics()
				r.write("--dst", "absent", "--count", "100")
				r.exact()
			} else if args[2] != "off" && strings.Count(out, "\n") < 2 {
				t.Errorf("%s says %q", c, out)
			}
		case "bpftool", "cat":
			path, err := exec.LookPath(args[0])
			if err != nil {
				t.Logf("%s is not installed", args[0])
				continue
			}
			out, err := exec.Command(path, args[1:]...).CombinedOutput()
			if err != nil || strings.Count(string(out), "\n") < 2 {
				t.Errorf("%s: %v %s", c, err, out)
			}
		default:
			t.Errorf("what is %q", c)
		}
	}
	if list, err := filepath.Glob(filepath.Join(r.dir, "*")); err != nil || len(list) != 0 {
		t.Errorf("left: %v %v", list, err)
	}
}
