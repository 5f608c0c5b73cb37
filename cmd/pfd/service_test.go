package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/sim"
)

// log is the standard error of a running pfd.
type log struct {
	t   *testing.T
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// waitFor waits until the log contains a text, and returns the whole log.
func (l *log) waitFor(text string) string {
	l.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		s := l.buf.String()
		l.mu.Unlock()
		if strings.Contains(s, text) {
			return s
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("the log does not contain %q:\n%s", text, s)
		}
	}
}

// startWith starts a pfd whose standard error goes to w.
func startWith(t *testing.T, w io.Writer, args ...string) *pfd {
	t.Helper()
	p := &pfd{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childEnv+"=1")
	p.cmd.Stderr = w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *pfd) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A file has the flags' keys, and the command line overrides it. SIGHUP applies the settings
// that it can and reports those that it cannot.
func TestConfigurationFile(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "pfd.toml")
	text := func(kv ...string) string {
		var b strings.Builder
		for i := 0; i < len(kv); i += 2 {
			fmt.Fprintf(&b, "%s = %s\n", kv[i], kv[i+1])
		}
		return b.String()
	}
	writeFile(t, file, text("nodes", "3", "socket", `"`+socket+`"`, "timeout-us", "5000", "guard-us", "60000", "outstanding", "3", "firmware-options", `["no-bypass", "no-tickets"]`))
	l := &log{t: t}
	p := startWith(t, l, "--config", file, "--guard-us", "70000")
	if s := p.ready(socket); s.Nodes != 3 || s.TimeoutUS != 5000 || s.GuardUS != 70000 {
		t.Errorf("status %+v", s)
	}
	if n := node0(t, socket); n.Firmware != "no-bypass,no-tickets" || n.Outstanding != 3 {
		t.Errorf("the firmware's options are %q with %d blocks outstanding", n.Firmware, n.Outstanding)
	}

	writeFile(t, file, text("nodes", "4", "socket", `"`+socket+`"`, "timeout-us", "6000", "outstanding", "2", "log-level", `"debug"`))
	p.signal(syscall.SIGHUP)
	s := l.waitFor("configuration reloaded")
	if !strings.Contains(s, "settings that need a restart of pfd") || !strings.Contains(s, `keys="[nodes firmware-options]"`) || !strings.Contains(s, "timeout-us") {
		t.Errorf("the log is\n%s", s)
	}
	if s := p.ready(socket); s.Nodes != 3 || s.TimeoutUS != 6000 || s.GuardUS != 70000 {
		t.Errorf("status after SIGHUP %+v", s)
	}
	if n := node0(t, socket); n.Outstanding != 2 {
		t.Errorf("%d blocks outstanding after SIGHUP, want 2", n.Outstanding)
	}

	// An invalid file changes nothing.
	writeFile(t, file, text("nodes", "4", "timeouts", "1"))
	p.signal(syscall.SIGHUP)
	if s := l.waitFor("not reloaded"); !strings.Contains(s, file+":2") || !strings.Contains(s, "timeouts") {
		t.Errorf("the log is\n%s", s)
	}
	if s := p.ready(socket); s.TimeoutUS != 6000 {
		t.Errorf("status after a bad file %+v", s)
	}
	p.signal(syscall.SIGTERM)
	if c := p.code(); c != config.ExitOK {
		t.Errorf("exit code %d", c)
	}
}

// node0 returns node 0 with its firmware's options.
func node0(t *testing.T, socket string) control.Node {
	t.Helper()
	c, err := control.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	nodes, err := c.Nodes(t.Context(), 0)
	if err != nil || len(nodes) != 1 {
		t.Fatalf("nodes %v, %v", nodes, err)
	}
	return nodes[0]
}

func TestBadConfigurationFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "pfd.toml")
	for _, tc := range []struct{ text, want string }{
		{"nodes = 2\nnode = 3\n", file + ":2: unknown key \"node\""},
		{"timeout-us = 1\nnodes = 0\n", file + ":2: configuration: --nodes 0: want 1 to 64"},
		{"nodes = \"x\"\n", file + ":1: "},
		{"config = \"other.toml\"\n", "unknown key"},
		{"log-level = \"loud\"\n", file + ":1: "},
		{"nodes = 2\nmetrics-listen = \"9482\"\n", file + ":2: configuration: --metrics-listen 9482: "},
		{"metrics-listen = \"127.0.0.1:99999\"\n", "as 127.0.0.1:9482"},
		{"nodes = 2\nlink-delay = \"2s\"\n", ".toml:2: configuration: link: --link-delay 2s: must be 0 to 1s"},
		{"firmware-options = \"fast\"\n", "no such optimization of the firmware: \"fast\""},
	} {
		writeFile(t, file, tc.text)
		for _, args := range [][]string{{"--check-config"}, nil} {
			var out bytes.Buffer
			args = append(args, "--config", file, "--socket", filepath.Join(dir, "s"))
			if c := run(context.Background(), args, &out, &out); c != config.ExitUsage || !strings.Contains(out.String(), tc.want) {
				t.Errorf("%q with %q: exit code %d: %s", tc.text, args, c, out.String())
			}
		}
	}
	writeFile(t, file, "nodes = 3\n")
	var said bytes.Buffer
	if c := run(context.Background(), []string{"--check-config", "--config", file}, &said, &said); c != config.ExitOK || said.String() != file+" is valid\n" {
		t.Errorf("a good file: exit code %d: %s", c, said.String())
	}
	// The command line overrides the file.
	said.Reset()
	if c := run(context.Background(), []string{"--check-config", "--config", file, "--nodes", "0"}, &said, &said); c != config.ExitUsage || strings.Contains(said.String(), file+":1") {
		t.Errorf("a bad flag and a good file: exit code %d: %s", c, said.String())
	}
	var out bytes.Buffer
	if c := run(context.Background(), []string{"--config", filepath.Join(dir, "none.toml")}, &out, &out); c != config.ExitUsage || !strings.Contains(out.String(), "no such file") {
		t.Errorf("no file: exit code %d: %s", c, out.String())
	}
}

// A log on a full disk, or whose reader has ended or does not read, loses lines and has no
// other effect.
func TestLogThatCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	gone, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]*os.File{"disk full": full, "no reader": write} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			p := startWith(t, w, "--socket", socket, "--log-level", "debug")
			p.ready(socket)
			c, err := control.New(socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				m, err := c.Metrics(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(m, "\nexanet_log_lines_lost_total ") && !strings.Contains(m, "\nexanet_log_lines_lost_total 0\n") {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the lost lines are not counted:\n%s", m)
				}
			}
			p.signal(syscall.SIGTERM)
			if c := p.code(); c != config.ExitOK {
				t.Errorf("exit code %d", c)
			}
		})
	}
	t.Run("reader that does not read", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		// The pipe is full before pfd logs anything. (Fd makes it blocking again.)
		fd := int(w.Fd())
		if err := syscall.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = syscall.Write(fd, make([]byte, 4096))
		}
		if err := syscall.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(t.TempDir(), "s")
		p := startWith(t, w, "--socket", socket)
		p.ready(socket)
		p.signal(syscall.SIGTERM)
		if c := p.code(); c != config.ExitOK {
			t.Errorf("exit code %d", c)
		}
	})
}

// Lines for the journal have priorities and no time.
func TestJournalLevels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no inode")
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
	socket := filepath.Join(t.TempDir(), "s")
	p := startWith(t, f, "--socket", socket)
	p.ready(socket)
	p.signal(syscall.SIGTERM)
	p.code()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "<6>msg=") && !strings.HasPrefix(line, "<4>msg=") {
			t.Errorf("line %q", line)
		}
	}
	if !strings.Contains(string(text), "<6>msg=ready") {
		t.Errorf("the log is %q", text)
	}
}

// --record writes a file that the simulator replays; pfd's own start and end suffice.
func TestRecordAndTrace(t *testing.T) {
	dir := t.TempDir()
	socket, rec, trace := filepath.Join(dir, "s"), filepath.Join(dir, "rec"), filepath.Join(dir, "trace")
	l := &log{t: t}
	p := startWith(t, l, "--socket", socket, "--record", rec, "--trace-registers="+trace, "--firmware-options", "none")
	p.ready(socket)
	p.signal(syscall.SIGTERM)
	if c := p.code(); c != config.ExitOK {
		t.Fatalf("exit code %d", c)
	}
	f, err := os.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r, err := sim.Replay(f); err != nil || r.Records == 0 || r.Checked != r.Records || r.Header.Firmware.String() != "none" {
		t.Errorf("%+v, %v", r, err)
	}
	text, err := os.ReadFile(trace)
	if err != nil || !bytes.Contains(text, []byte(" pl+0x00018 CTRL = 0x1: enable\n")) {
		t.Errorf("the trace has %d bytes, %v", len(text), err)
	}

	// Without a file the lines go to standard error.
	l = &log{t: t}
	p = startWith(t, l, "--socket", socket, "--trace-registers")
	p.ready(socket)
	l.waitFor(" pl+0x00018 CTRL = 0x1: enable\n")
	p.signal(syscall.SIGTERM)
	p.code()
}

// pfd names a missing device at once, in the log and to the service manager. A signal ends the
// wait.
func TestWaitsForDevice(t *testing.T) {
	dir := t.TempDir()
	nope, manager := filepath.Join(dir, "nope"), filepath.Join(dir, "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: manager, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	t.Setenv("NOTIFY_SOCKET", manager)
	l := &log{t: t}
	p := startWith(t, l, "--socket", filepath.Join(dir, "s"), "--device", "vfio-user:"+nope)
	if s := l.waitFor("waiting for the device"); !strings.Contains(s, "device=vfio-user:"+nope) || !strings.Contains(s, "no such file") {
		t.Errorf("the log is\n%s", s)
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var b [4096]byte
	n, err := c.Read(b[:])
	if s := string(b[:n]); err != nil || !strings.HasPrefix(s, "STATUS=waiting for vfio-user:"+nope+": ") {
		t.Errorf("the service manager receives %q, %v", s, err)
	}
	p.signal(syscall.SIGTERM)
	if c := p.code(); c != config.ExitOK {
		t.Errorf("exit code %d", c)
	}
}
