package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/config"
	"github.com/exanet/pfd/internal/discard"
)

const (
	childEnv = "PFD_TEST_MAIN"
	// patience is reached only by a hang.
	patience = 2 * time.Minute
)

// TestMain runs pfd itself in processes that a test has started for that.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" || discard.IsServer(os.Args) {
		main()
	}
	os.Exit(m.Run())
}

// pfd is a real process of this program.
type pfd struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan struct{}
}

func startPFD(t *testing.T, args ...string) *pfd {
	t.Helper()
	p := &pfd{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childEnv+"=1")
	p.cmd.Stderr = &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		// The exit code is checked by code.
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// ready waits until the daemon answers.
func (p *pfd) ready(socket string) control.Status {
	p.t.Helper()
	c, err := control.New(socket)
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		s, err := c.Status(ctx)
		if err == nil && s.PID == p.cmd.Process.Pid {
			return s
		}
		select {
		case <-p.done:
			p.t.Fatalf("pfd ended: %s", p.stderr.String())
		case <-ctx.Done():
			p.t.Fatalf("pfd does not answer: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (p *pfd) code() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("pfd does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestSIGTERMExitsZero(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "pfd.sock")
			p := startPFD(t, "--nodes", "3", "--socket", socket, "--timeout-us", "1000", "--guard-us", "5000", "--source-faults", "timeout")
			s := p.ready(socket)
			if s.Nodes != 3 || s.TimeoutUS != 1000 || s.GuardUS != 5000 || s.SourceFaults != "timeout" || s.Device != "emu" || s.State != control.StateReady {
				t.Errorf("status %+v", s)
			}
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if c := p.code(); c != config.ExitOK {
				t.Errorf("exit code %d: %s", c, p.stderr.String())
			}
			for _, path := range []string{socket, control.AttachSocket(socket)} {
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s still exists: %v", path, err)
				}
			}
		})
	}
}

func TestSecondDaemon(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "pfd.sock")
	first := startPFD(t, "--socket", socket)
	first.ready(socket)

	same := startPFD(t, "--socket", socket)
	if c := same.code(); c != config.ExitFailed {
		t.Errorf("a second pfd on the same socket exits %d", c)
	}
	if out := same.stderr.String(); !strings.Contains(out, socket) || !strings.Contains(out, "in use") || !strings.Contains(out, "--socket") {
		t.Errorf("output %q", out)
	}
	first.ready(socket)

	beside := startPFD(t, "--socket", filepath.Join(dir, "other.sock"))
	beside.ready(filepath.Join(dir, "other.sock"))

	// The next pfd replaces what a killed one leaves.
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.code()
	if _, err := os.Lstat(socket); err != nil {
		t.Fatalf("the socket of a killed pfd: %v", err)
	}
	startPFD(t, "--socket", socket).ready(socket)
}

func TestDefaultSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run") // created by pfd
	t.Setenv("RUNTIME_DIRECTORY", dir)
	p := startPFD(t)
	p.ready(filepath.Join(dir, "pfd.sock"))
}

// Output that a full disk refuses is an error, including the help.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, arg := range []string{"--help", "--version", "--check-config"} {
		var errs bytes.Buffer
		if code := run(context.Background(), []string{arg, "--socket", "/tmp/s"}, full, &errs); code != config.ExitFailed || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%s: exit code %d, %q", arg, code, errs.String())
		}
	}
}

func TestCommandLine(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pfd.sock")
	for _, tc := range []struct {
		args []string
		code int
		out  string
	}{
		{[]string{"--help"}, config.ExitOK, "--source-faults"},
		{[]string{"--version"}, config.ExitOK, "pfd version"},
		{[]string{"--no-such-flag"}, config.ExitUsage, "no-such-flag"},
		{[]string{"serve"}, config.ExitUsage, "only flags"},
		{[]string{"--check-config", "--socket", socket}, config.ExitOK, "the configuration is valid"},
		{[]string{"--check-config", "--socket", socket, "--nodes", "65"}, config.ExitUsage, "--nodes 65: want 1 to 64"},
		{[]string{"--check-config", "--socket", socket, "--groups", "/nope", "--pdid-range", "1-100"}, config.ExitUsage, "--groups: open /nope: no such file"},
		{[]string{"--socket", socket, "--nodes", "0"}, config.ExitUsage, "1 to 64"},
		{[]string{"--socket", socket, "--nodes", "x"}, config.ExitUsage, "--nodes x: want a whole number"},
		{[]string{"--socket", socket, "--device", "vfio:01:00.0"}, config.ExitUsage, "want it as 0000:01:00.0"},
		{[]string{"--socket", socket, "--device", "vfio:ffff:ff:1f.7"}, config.ExitFailed, "no such PCI device"},
		{[]string{"--socket", socket, "--device", "pci:x"}, config.ExitUsage, "vfio-user:PATH, vfio:ADDRESS and uio:NAME"},
		{[]string{"--socket", socket, "--source-faults", "no"}, config.ExitUsage, "fifo"},
		{[]string{"--socket", socket, "--log-level", "loud"}, config.ExitUsage, "debug, info"},
		{[]string{"--socket", socket, "--timeout-us", "0"}, config.ExitUsage, "--timeout-us"},
		{[]string{"--socket", socket, "--firmware-options", "bypas"}, config.ExitUsage, `"bypas": give all, none, or a list of fastpath`},
		{[]string{"--socket", socket, "--link-loss", "1"}, config.ExitUsage, "--link-loss 1: must be 0 to less than 1"},
		{[]string{"--socket", socket, "--link-loss", "some"}, config.ExitUsage, "--link-loss some: want a number"},
		{[]string{"--socket", socket, "--link-delay", "-1us"}, config.ExitUsage, "--link-delay -1µs: must be 0 to 1s"},
		{[]string{"--socket", socket, "--link-delay", "10ms"}, config.ExitUsage, "its time-out is 20ms: want less, or more --timeout-us"},
		{[]string{"--socket", socket, "--link-delay", "10us", "--device", "vfio-user:/x"}, config.ExitUsage, "exanetctl emu serve --link-delay"},
		{[]string{"--socket", socket, "--firmware-options", "none", "--device", "vfio-user:/x"}, config.ExitUsage, "exanetctl emu serve --firmware-options"},
		{[]string{"--socket", socket, "--sandbox", "on"}, config.ExitUsage, `want "auto", "strict" or "off"`},
		{[]string{"--socket", socket, "--window", "16MB", "--device", "vfio:ffff:ff:1f.7"}, config.ExitUsage, "whole pages"},
		{[]string{"--socket", socket, "--window", "16MiB", "--device", "vfio:ffff:ff:1f.7"}, config.ExitFailed, "no such PCI device"},
		{[]string{"--socket", socket, "--window", "much"}, config.ExitUsage, "as 4096 or 4KiB"},
		{[]string{"--socket", socket, "--guard-us", "0"}, config.ExitUsage, "--guard-us"},
		{[]string{"--socket", socket, "--outstanding", "0"}, config.ExitUsage, "--outstanding"},
		{[]string{"--socket", socket, "--outstanding", "1025"}, config.ExitUsage, "1 to 1024"},
		{[]string{"--socket", "/" + strings.Repeat("s", 101)}, config.ExitUsage, "at most 99 bytes"},
		{[]string{"--socket", filepath.Join(socket, "none", "pfd.sock")}, config.ExitFailed, "no such file or directory"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			var out bytes.Buffer
			if c := run(context.Background(), tc.args, &out, &out); c != tc.code {
				t.Errorf("exit code %d, want %d: %s", c, tc.code, out.String())
			}
			if !strings.Contains(out.String(), tc.out) {
				t.Errorf("output %q, want %q in it", out.String(), tc.out)
			}
		})
	}
}
