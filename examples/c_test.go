package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon"
)

// patience is met only where something hangs.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if daemon.IsMemoryHelper(os.Args) { // of a client of another user
		if daemon.ServeMemory() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// public is a directory that every user can read.
func public(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "exanet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// build compiles the client as its first comment says, and takes no warning.
func build(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed: make test installs it")
	}
	bin := filepath.Join(public(t), "exanet")
	if out, err := exec.CommandContext(t.Context(), gcc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o", bin, filepath.Join("c", "exanet.c")).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// start runs a pfd of two nodes in this process.
func start(t *testing.T) *control.Client {
	t.Helper()
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(public(t), "s")
	m, err := daemon.Emulated(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	c, err := control.New(cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// target is a process that waits for bytes.
type target struct {
	cmd    *exec.Cmd
	out    *bufio.Scanner
	stderr bytes.Buffer
	args   []string // of who writes to it
}

func startTarget(t *testing.T, ctx context.Context, user *syscall.Credential, bin string, args ...string) *target {
	t.Helper()
	p := &target{cmd: exec.CommandContext(ctx, bin, append([]string{"target"}, args...)...)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if !p.out.Scan() {
		t.Fatalf("the target says nothing: %v, %s", p.cmd.Wait(), p.stderr.String())
	}
	p.args = strings.Fields(p.out.Text())
	return p
}

// transfer writes size bytes from one process of a user to another.
func transfer(t *testing.T, bin string, client *control.Client, user *syscall.Credential, method, size string, during func(target int)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := startTarget(t, ctx, user, bin, client.Socket(), "1", method, size)
	during(p.cmd.Process.Pid)
	write := exec.CommandContext(ctx, bin, append([]string{"write", client.Socket(), "0", method, size}, p.args...)...)
	write.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if out, err := write.CombinedOutput(); err != nil {
		t.Errorf("write: %v: %s", err, out)
		cancel()
	}
	p.out.Scan()
	if got, want := p.out.Text(), size+" bytes came, 0 wrong"; got != want {
		t.Errorf("the target says %q, want %q", got, want)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("target: %v: %s", err, p.stderr.String())
	}
}

func TestTransfer(t *testing.T) {
	bin, client := build(t), start(t)
	for _, method := range []string{"gup", "touch"} {
		for _, size := range []string{"1", "4096", "100000", "4194304"} {
			t.Run(method+"/"+size, func(t *testing.T) {
				transfer(t, bin, client, nil, method, size, func(int) {})
			})
		}
	}
	counters, err := client.Counters(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]uint64{}
	for _, c := range counters {
		value[c.Name] = c.Value
	}
	if value[control.CounterPagesIn] == 0 || value["faults_delegated_total"] == 0 {
		t.Errorf("%d pages paged in by pfd, %d faults delegated: want both methods at work", value[control.CounterPagesIn], value["faults_delegated_total"])
	}
}

// TestTransferOfAnotherUser has clients of a user over whom pfd takes no right: each
// starts a memory helper, which is gone when it has left.
func TestTransferOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a client of another user")
	}
	bin, client := build(t), start(t)
	for _, method := range []string{"gup", "touch"} {
		for _, size := range []string{"1", "100000", "4194304"} {
			t.Run(method+"/"+size, func(t *testing.T) {
				var helpers []int
				transfer(t, bin, client, &syscall.Credential{Uid: 65534, Gid: 65534}, method, size, func(target int) {
					if helpers = helpersOf(t, target); len(helpers) != 1 {
						t.Errorf("the target has helpers %v, want one", helpers)
					}
				})
				for _, pid := range helpers {
					if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
						t.Errorf("helper %d is still there (%v)", pid, err)
					}
				}
			})
		}
	}
}

// helpersOf lists the memory helpers that a process has started.
func helpersOf(t *testing.T, pid int) (list []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		stat, err := os.ReadFile(filepath.Join(name, "stat"))
		command, cmdErr := os.ReadFile(filepath.Join(name, "cmdline"))
		if err != nil || cmdErr != nil || string(command) != "pfd\x00"+attach.HelperCommand+"\x00" {
			continue // another's, or it has ended
		}
		var state string
		var parent int
		_, rest, _ := strings.Cut(string(stat), ") ")
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			t.Fatal(err)
		}
		if child, err := strconv.Atoi(filepath.Base(name)); err == nil && parent == pid {
			list = append(list, child)
		}
	}
	return list
}

// What goes wrong is said, and the other side lives on.
func TestFailures(t *testing.T) {
	bin, client := build(t), start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := startTarget(t, ctx, nil, bin, client.Socket(), "1", "gup", "4096")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no such node":  {[]string{"write", client.Socket(), "9", "gup", "1", "1", "0", "1", "0x1000", "0"}, "refused, code 4: no node 9 here"},
		"nothing there": {[]string{"write", client.Socket(), "0", "touch", "1", p.args[0], p.args[1], p.args[2], "0x1000", "0"}, "status 2"},
		"another one":   {[]string{"write", client.Socket(), "0", "touch", "1", p.args[0], p.args[1], "1", "0x1000", "0"}, "status 5"},
		"no pfd":        {[]string{"target", client.Socket() + "x", "0", "gup", "1"}, "No such file"},
		"usage":         {nil, "usage:"},
		"other methods": {[]string{"target", client.Socket(), "0", "uffd", "1"}, "usage:"},
	} {
		out, err := exec.CommandContext(ctx, bin, c.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	// A target that is kicked is told.
	for {
		domains, err := client.Domains(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(domains) == 1 {
			if _, err := client.Kick(ctx, 1, domains[0].Slot); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if err := p.cmd.Wait(); err == nil || !strings.Contains(p.stderr.String(), "ended before the bytes came") {
		t.Errorf("kicked: %v, %s", err, p.stderr.String())
	}
}
