package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/control"
)

// docs/tutorial.md works as it stands: its commands are run in their order, with bin/ and
// the default socket elsewhere, its texts are what they say, and its Go is the program's.
func TestTutorial(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docs", "tutorial.md"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join("putget", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context() // it builds the programs: how long that takes is the machine's
	dir := public(t)
	t.Setenv("RUNTIME_DIRECTORY", dir)
	// command is one of the page's, ready to start.
	command := func(ctx context.Context, cmd string) *exec.Cmd {
		c := exec.CommandContext(ctx, "sh", "-c", "exec "+strings.ReplaceAll(cmd, "bin/", dir+"/bin/"))
		c.Dir = ".."
		return c
	}
	var said string // by the last command
	var remote string
	next := func() string { return "" } // what the target says

	count := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```(sh|text|go)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		kind, body := m[1], strings.TrimSuffix(m[2], "\n")
		count[kind]++
		switch {
		case kind == "go":
			if !strings.Contains(string(source), body+"\n") {
				t.Errorf("examples/putget does not have this:\n%s", body)
			}
		case kind == "text":
			got := said
			if said = ""; got == "" {
				got = next()
			}
			if remote == "" {
				remote = got
				got = "REMOTE"
			}
			if got != body {
				t.Errorf("a command says %q, want %q", got, body)
			}
		case body == "make build":
			c := exec.CommandContext(ctx, "make", "-s", "-n", "build")
			c.Dir = ".."
			out, err := c.Output()
			if err != nil {
				t.Fatal(err)
			}
			if out, err := command(ctx, "sh -ec '"+string(out)+"'").CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", body, err, out)
			}
		case strings.HasPrefix(body, "bin/pfd"):
			background(t, command(context.Background(), body))
			client, err := control.New(filepath.Join(dir, "pfd.sock"))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			began := time.Now()
			for _, err := client.Status(ctx); err != nil; _, err = client.Status(ctx) {
				if time.Since(began) > patience {
					t.Fatal(err)
				}
			}
		case strings.HasSuffix(body, "target"):
			s := background(t, command(context.Background(), body))
			next = func() string { return line(t, s) }
		default:
			out, err := command(ctx, strings.ReplaceAll(body, "REMOTE", remote)).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", body, err, out)
			}
			said = strings.TrimSuffix(string(out), "\n")
			if body == "bin/exanetctl fault" && !strings.Contains(string(out), "resolved") {
				t.Errorf("no fault in the log:\n%s", out)
			}
		}
	}
	if remote == "" || count["sh"] < 7 || count["text"] != 3 || count["go"] != 4 {
		t.Errorf("the page has %v", count)
	}
}
