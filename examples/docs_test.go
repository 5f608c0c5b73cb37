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

	"github.com/exanet/pfd/daemon/control"
)

// stays matches the commands that run until they are interrupted.
var stays = regexp.MustCompile(`^(bin/pfd|prometheus|\S+ target$)`)

// bin matches the directory of the programs in a command.
var bin = regexp.MustCompile(`(^|\s|=|-I)bin\b`)

// session runs the commands of a document as its reader would type them.
type session struct {
	*testing.T
	at     string                   // the working directory
	env    []string                 // besides the test's own
	edit   func(line string) string // adapts a command of the reader's machine to this one
	target *bufio.Scanner           // what the target prints
	remote string                   // the first line of that
	output string                   // what the last command that has ended printed
}

func newSession(t *testing.T, at string, edit func(string) string) *session {
	dir := public(t)
	return &session{T: t, at: at, edit: edit, env: []string{"RUNTIME_DIRECTORY=" + dir, "TMPDIR=" + dir, "GOFLAGS=", "GOWORK=off"}}
}

func (s *session) command(ctx context.Context, line string) *exec.Cmd {
	if stays.MatchString(line) {
		line = "exec " + s.edit(line)
	} else {
		line = s.edit(line)
	}
	c := exec.CommandContext(ctx, "sh", "-ec", line)
	c.Dir, c.Env = s.at, append(os.Environ(), s.env...)
	return c
}

// run runs one command. If it runs until interrupted, it is ready when run returns.
func (s *session) run(line string) {
	s.Helper()
	if to, ok := strings.CutPrefix(line, "cd "); ok {
		s.at = filepath.Join(s.at, to)
		return
	}
	if strings.Contains(line, "REMOTE") {
		line = strings.ReplaceAll(line, "REMOTE", s.name())
	}
	if !stays.MatchString(line) {
		out, err := s.command(s.Context(), line).CombinedOutput() // no time-out: it may build
		if err != nil {
			s.Fatalf("%s: %v\n%s", line, err, out)
		}
		s.output = string(out)
		return
	}
	out := background(s.T, s.command(context.Background(), line)) // interrupted at the end, not killed
	switch {
	case strings.HasSuffix(line, " target"):
		s.target, s.remote = out, ""
	case strings.HasPrefix(line, "bin/pfd"):
		dir, _ := strings.CutPrefix(s.env[0], "RUNTIME_DIRECTORY=")
		ready(s.T, filepath.Join(dir, "pfd.sock"))
	}
}

// name returns what the target printed first.
func (s *session) name() string {
	s.Helper()
	if s.remote == "" {
		s.remote = line(s.T, s.target)
	}
	return s.remote
}

// printed checks a text: the last command printed it, or, if that printed nothing, the target
// prints it next. REMOTE stands for the name of the target's memory.
func (s *session) printed(want string) {
	s.Helper()
	switch got := s.output; {
	case want == "REMOTE\n":
		if !strings.HasPrefix(s.name(), "exanet2:") {
			s.Errorf("the target prints %q", s.name())
		}
	case got == "":
		if got := line(s.T, s.target) + "\n"; got != want {
			s.Errorf("the target prints %q, want %q", got, want)
		}
	case got != want:
		s.Errorf("a command printed:\n%swant:\n%s", got, want)
	}
	s.output = ""
}

// ready waits for a pfd's first answer.
func ready(t *testing.T, socket string) {
	t.Helper()
	client, err := control.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err = client.Status(t.Context()); err == nil {
			return
		}
		if time.Since(began) > patience {
			t.Fatal(err)
		}
	}
}

// docs/tutorial.md and README.md ("A program of one's own") are true: their commands run in their
// order, with another bin/ and another default socket, each text is printed at that point, and
// their programs are the examples'.
func TestPages(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed: make test installs it")
	}
	programs := public(t)
	at, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	built := map[string]bool{}
	for name, page := range map[string]struct {
		path, from, to string // of its text, between these headings
		program        string // its Go
		want           map[string]int
	}{
		"tutorial": {"docs/tutorial.md", "# Two processes", "## From here", "putget/main.go", map[string]int{"sh": 9, "text": 5, "go": 4}},
		"README":   {"README.md", "## A program of your own", "## Commands", "putget/main.go", map[string]int{"sh": 8, "text": 2, "go": 1, "c": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(at, page.path))
			if err != nil {
				t.Fatal(err)
			}
			_, part, found := strings.Cut(string(text), page.from)
			part, _, ended := strings.Cut(part, page.to)
			if !found || !ended {
				t.Fatalf("%s has no %q before %q", page.path, page.from, page.to)
			}
			s := newSession(t, at, func(line string) string { return bin.ReplaceAllString(line, "${1}"+programs+"/bin") })
			count := map[string]int{}
			for _, m := range regexp.MustCompile("(?s)\n```(\\w+)\n(.*?)```").FindAllStringSubmatch(part, -1) {
				kind, body := m[1], m[2]
				switch kind {
				case "go":
					count[kind]++
					if source, err := os.ReadFile(page.program); err != nil || !strings.Contains(string(source), body) {
						t.Errorf("examples/%s does not have this (%v):\n%s", page.program, err, body)
					}
				case "c":
					count[kind]++
					if source, err := os.ReadFile("c/put.c"); err != nil || body != string(source) {
						t.Errorf("this is not examples/c/put.c (%v):\n%s", err, body)
					}
				case "text":
					count[kind]++
					s.printed(body)
				case "sh":
					for line := range strings.Lines(body) {
						count[kind]++
						line = strings.TrimSuffix(line, "\n")
						if what, ok := strings.CutPrefix(line, "make "); ok { // into the other bin/
							if built[what] {
								continue
							}
							built[what] = true
							s.run("make -s -n " + what)
							line = s.output
						}
						s.run(line)
					}
				default:
					t.Errorf("a block of kind %q", kind)
				}
			}
			if fmt.Sprint(count) != fmt.Sprint(page.want) {
				t.Errorf("the page has %v, want %v", count, page.want)
			}
		})
	}
}

// docs/stopwatch.md works unchanged, from a clone, and its table counts right. The time that it
// takes is in the log.
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

// way runs the commands of one way in a separate directory, and checks for its goal at the end.
func way(t *testing.T, root string, lines []string) {
	for _, program := range []string{"git", "make", "cc", "curl", "prometheus"} {
		if _, err := exec.LookPath(program); err != nil && strings.Contains("\n"+strings.Join(lines, "\n"), "\n"+program+" ") {
			t.Skipf("%s is not installed", program)
		}
	}
	edit := strings.NewReplacer("127.0.0.1:9482", address(t), "127.0.0.1:9090", address(t), "https://github.com/exanet/pfd", root+" pfd")
	s := newSession(t, public(t), edit.Replace)
	began := time.Now()
	last := len(lines) - 1
	for _, line := range lines[:last] {
		s.run(line)
	}
	if line := lines[last]; strings.HasPrefix(line, "curl ") {
		// After the next scrape, every transfer of the command before is counted.
		s.await(line, `"node":"0","outcome":"completed"},"value":[`, `,"200"]`)
	} else {
		s.run(line)
		words := regexp.MustCompile(`REMOTE "?([^"]*)`).FindStringSubmatch(line)
		if words == nil {
			t.Fatalf("%q puts no line", line)
		}
		s.printed(words[1] + "\n")
	}
	t.Logf("%d commands, %.0f s", len(lines), time.Since(began).Seconds())
}

// address returns an address at which nothing listens.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// await repeats a command until it succeeds and prints all of the texts.
func (s *session) await(line string, texts ...string) {
	s.Helper()
	for deadline := time.Now().Add(4 * patience); ; time.Sleep(100 * time.Millisecond) {
		out, err := s.command(s.Context(), line).CombinedOutput()
		all := err == nil
		for _, text := range texts {
			all = all && strings.Contains(string(out), text)
		}
		if all {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s: %v, want %q:\n%s", line, err, texts, out)
		}
	}
}
