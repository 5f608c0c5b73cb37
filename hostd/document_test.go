package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/netns"
)

// reader types the commands of docs/hosts.md on two machines of the test's own network.
type reader struct {
	*testing.T
	mesh   *netns.Mesh
	dir    string
	target *bufio.Scanner // what bin/putget target prints
	remote string
}

// command returns a command of the document on machine a or b.
func (r *reader) command(machine, line string) (*netns.Machine, *exec.Cmd) {
	line = strings.NewReplacer("192.0.2.1", r.mesh.Machine(0).Addr().String(), "192.0.2.2", r.mesh.Machine(1).Addr().String(), "REMOTE", r.remote).Replace(line)
	c := exec.Command("sh", "-ec", "exec "+line)
	c.Dir, c.Env = r.dir, append(os.Environ(), "RUNTIME_DIRECTORY="+filepath.Join(r.dir, machine))
	if machine == "b" {
		return r.mesh.Machine(1), c
	}
	return r.mesh.Machine(0), c
}

// stays matches the commands that run until they are interrupted.
var stays = regexp.MustCompile(`^bin/(pfd|exanet-hostd|putget target)`)

// start starts a command that stays, and returns what it prints on standard output.
func (r *reader) start(machine, line string) io.Reader {
	r.Helper()
	m, c := r.command(machine, line)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // of this thread, to which the test is locked
	var said strings.Builder
	c.Stderr = &said
	out, in, err := os.Pipe()
	if err != nil {
		r.Fatal(err)
	}
	c.Stdout = in
	if err := m.Start(c); err != nil {
		r.Fatal(err)
	}
	in.Close()
	r.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait() // the output says more
		out.Close()
		if r.Failed() {
			r.Logf("%s on %s:\n%s", line, machine, said.String())
		}
	})
	return out
}

// prints runs a command until it prints want: pfd starts, and the link comes up meanwhile.
func (r *reader) prints(machine, line, want string) {
	r.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		m, c := r.command(machine, line)
		var out, said strings.Builder
		c.Stdout, c.Stderr = &out, &said
		err := m.Start(c)
		if err == nil {
			err = c.Wait()
		}
		if err == nil && (want == "" || out.String() == want) {
			return
		}
		if time.Now().After(limit) {
			r.Fatalf("%s on %s: %v\n%s%s\nwant\n%s", line, machine, err, out.String(), said.String(), want)
		}
	}
}

// The commands of the document's first section do what it says.
func TestDocument(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mesh, err := netns.New(2)
	if errors.Is(err, netns.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer mesh.Close()
	text, err := os.ReadFile("../docs/hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "## Two machines in five minutes")
	part, _, _ = strings.Cut(part, "\n## ")
	r := &reader{T: t, mesh: mesh, dir: t.TempDir()}
	for _, d := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(r.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	for _, args := range [][]string{
		{"build", "-C", "..", "-buildvcs=false", "-o", r.dir + "/bin/", "./cmd/pfd", "./cmd/exanetctl"}, {"build", "-buildvcs=false", "-o", r.dir + "/bin/exanet-hostd", "."},
	} {
		if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	machine, commands := "a", 0
	blocks := strings.Split(part, "```")
	for i := 0; i+1 < len(blocks); i += 2 {
		if m := regexp.MustCompile(`machine ([ab])\b`).FindAllStringSubmatch(blocks[i], -1); m != nil {
			machine = m[len(m)-1][1]
		}
		list, ok := strings.CutPrefix(blocks[i+1], "sh\n")
		if !ok {
			continue // what the block before it prints
		}
		want := ""
		if i+3 < len(blocks) && strings.TrimSpace(blocks[i+2]) == "" {
			want = strings.TrimPrefix(blocks[i+3], "text\n")
		}
		for line := range strings.Lines(list) {
			line = strings.TrimSpace(line)
			commands++
			switch {
			case strings.HasPrefix(line, "go build -o bin/"):
				c := exec.CommandContext(ctx, "sh", "-ec", strings.Replace(line, "-o bin/", "-buildvcs=false -o "+r.dir+"/bin/", 1))
				c.Dir = ".."
				if out, err := c.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", line, err, out)
				}
			case strings.HasSuffix(line, " target"):
				r.target = bufio.NewScanner(r.start(machine, line))
				if !r.target.Scan() || !strings.HasPrefix(r.target.Text(), "exanet2:") {
					t.Fatalf("%s prints %q", line, r.target.Text())
				}
				r.remote = r.target.Text()
			case stays.MatchString(line):
				r.start(machine, line)
			default:
				r.prints(machine, line, want)
			}
		}
	}
	if r.target == nil || !r.target.Scan() || r.target.Text() != "hello, absent page" || commands != 10 {
		t.Errorf("the target printed no line; %d commands", commands)
	}
}
