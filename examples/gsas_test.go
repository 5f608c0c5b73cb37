package examples

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// docs/gsas.md has the lines of the counter.
func TestCounterOfTheDocument(t *testing.T) {
	page, err := os.ReadFile("../docs/gsas.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("counter/main.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)\n```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d programs in docs/gsas.md", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(string(source), b[1]) {
			t.Errorf("examples/counter does not have this:\n%s", b[1])
		}
	}
}

// Two processes on two nodes add to one counter.
func TestCounter(t *testing.T) {
	bin, client := program(t, "counter"), start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	token := line(t, background(t, exec.Command(bin, "-socket", client.Socket(), "begin")))
	for _, c := range []struct {
		args []string
		says string
		ok   bool
	}{
		{[]string{"add", token, "10"}, "10\n", true},
		{[]string{"add", token, "5"}, "15\n", true},
		{[]string{"add", strings.Repeat("0f", 16), "1"}, "no such tree", false},
		{[]string{"add", "counter", "1"}, "not the token of a tree", false},
		{nil, "usage:", false},
	} {
		out, err := exec.CommandContext(ctx, bin, append([]string{"-socket", client.Socket()}, c.args...)...).CombinedOutput()
		if (err == nil) != c.ok || c.ok && string(out) != c.says || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: %v, %s", c.args, err, out)
		}
	}
}

// A lock and a barrier of the global shared address space hold between two nodes.
func TestPhases(t *testing.T) {
	bin, client := program(t, "phases"), start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, "-socket", client.Socket(), "-workers", "3", "-phases", "10").CombinedOutput()
	if err != nil || string(out) != "3 workers, 10 phases, sum 30\n" {
		t.Errorf("%v, %s", err, out)
	}
}
