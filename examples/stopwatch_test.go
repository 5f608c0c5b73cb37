package examples

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// stays tells whether a command goes on until its end is asked for.
var stays = regexp.MustCompile(`^(bin/pfd|prometheus|\S+ target$)`)

// docs/stopwatch.md works as it stands, from a clone, and its table counts right. How long
// it takes is in the log.
func TestStopwatch(t *testing.T) {
	if testing.Short() {
		t.Skip("each way builds the programs: not with -short")
	}
	text, err := os.ReadFile(filepath.Join("..", "docs", "stopwatch.md"))
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	ways := regexp.MustCompile("(?s)\n## (?:The |An? )([^\n]*)\n```sh\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(ways) != 4 {
		t.Fatalf("%d ways", len(ways))
	}
	for _, w := range ways {
		lines := strings.Split(strings.TrimSpace(w[2]), "\n")
		if !regexp.MustCompile(fmt.Sprintf(`\n\| an? %s \| %d \||\n\| the %s \| %d \|`, w[1], len(lines), w[1], len(lines))).Match(text) {
			t.Errorf("%q has %d commands, and the table another count", w[1], len(lines))
		}
		if w[1] == "demo" {
			continue // TestDemo
		}
		t.Run(w[1], func(t *testing.T) { way(t, root, lines) })
	}
}

// way runs the commands of one way, in a directory of its own.
func way(t *testing.T, root string, lines []string) {
	for _, program := range []string{"git", "make", "cc", "curl", "prometheus"} {
		if _, err := exec.LookPath(program); err != nil && strings.Contains("\n"+strings.Join(lines, "\n"), "\n"+program+" ") {
			t.Skipf("%s is not installed", program)
		}
	}
	dir := public(t)
	at := dir
	ports := strings.NewReplacer("127.0.0.1:9482", address(t), "127.0.0.1:9090", address(t), "https://github.com/exanet/pfd", root)
	ctx := t.Context() // it builds the programs: how long that takes is the machine's
	remote := "REMOTE"
	began := time.Now()
	for _, line := range lines {
		if to, ok := strings.CutPrefix(line, "cd "); ok {
			at = filepath.Join(at, to)
			continue
		}
		line = strings.ReplaceAll(ports.Replace(line), "REMOTE", remote)
		command := func(ctx context.Context) *exec.Cmd {
			if strings.HasPrefix(line, "git clone") {
				line += " pfd"
			}
			if stays.MatchString(line) {
				line = "exec " + line
			}
			c := exec.CommandContext(ctx, "sh", "-c", line)
			c.Dir, c.Env = at, append(os.Environ(), "RUNTIME_DIRECTORY="+dir, "GOFLAGS=", "GOWORK=off")
			return c
		}
		switch {
		case stays.MatchString(line):
			out := background(t, command(context.Background())) // ended in good order
			switch {
			case strings.HasSuffix(line, "target"):
				remote = say(t, out)
			case strings.Contains(line, "bin/pfd"):
				for _, err := os.Stat(filepath.Join(dir, "pfd.sock")); err != nil && ctx.Err() == nil; _, err = os.Stat(filepath.Join(dir, "pfd.sock")) {
					time.Sleep(10 * time.Millisecond)
				}
			}
		case strings.HasPrefix(line, "curl"):
			await(t, command, `"exanet_transfers_total"`)
		default:
			if out, err := command(ctx).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
	}
	t.Logf("%d commands, %.0f s", len(lines), time.Since(began).Seconds())
}

// address is one that nobody listens at.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// say gives the next line that a program says.
func say(t *testing.T, s *bufio.Scanner) string { return line(t, s) }

// await repeats a command until it succeeds and says a text.
func await(t *testing.T, command func(context.Context) *exec.Cmd, text string) {
	t.Helper()
	for deadline := time.Now().Add(4 * patience); ; time.Sleep(100 * time.Millisecond) {
		out, err := command(t.Context()).CombinedOutput()
		if err == nil && strings.Contains(string(out), text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v: %s", err, out)
		}
	}
}
