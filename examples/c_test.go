package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	sessions "github.com/exanet/pfd/daemon/session"
)

// patience is reached only if something hangs.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if sessions.IsMemoryHelper(os.Args) { // for a client of another user
		if sessions.ServeMemory() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if socket := os.Getenv(useEnv); socket != "" {
		fmt.Println(useGo(socket))
		os.Exit(0)
	}
	if len(os.Args) > 1 && (os.Args[1] == daemonCommand || os.Args[1] == stoppedCommand) {
		if err := runCommand(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, os.Args[1:], err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// public returns a directory that every user can read.
func public(t testing.TB) string {
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

// library builds libexanet in a directory, with flags for the compiler.
func library(t testing.TB, dir string, flags ...string) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed: make test installs it")
	}
	c := exec.CommandContext(t.Context(), "sh", filepath.Join("..", "contrib", "scripts", "libexanet.sh"), dir)
	c.Env = append(os.Environ(), "CFLAGS="+strings.Join(flags, " "))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("libexanet: %v\n%s", err, out)
	}
}

// compile builds a program of examples/c, or of a path from there, with the library in dir,
// without a warning.
func compile(t testing.TB, dir, name string, flags ...string) string {
	t.Helper()
	bin := filepath.Join(dir, filepath.Base(name))
	args := append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-g", "-I", dir, "-o", bin, filepath.Join("c", name+".c")}, flags...)
	if out, err := exec.CommandContext(t.Context(), "gcc", append(args, filepath.Join(dir, "libexanet.a"), "-pthread")...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// build builds the client.
func build(t *testing.T, flags ...string) string {
	t.Helper()
	dir := public(t)
	library(t, dir, flags...)
	return compile(t, dir, "exanet", flags...)
}

// start runs a pfd of two nodes in this process.
func start(t testing.TB) *control.Client { return startLossy(t, 0) }

// startLossy runs one whose link loses frames.
func startLossy(t testing.TB, loss float64) *control.Client {
	t.Helper()
	cfg := daemon.Default()
	cfg.Link.Loss = loss
	cfg.Socket = filepath.Join(public(t), "pfd.sock")
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
	in     io.Closer
	args   []string // of its writer
}

func startTarget(t *testing.T, ctx context.Context, as *syscall.SysProcAttr, bin string, args ...string) *target {
	t.Helper()
	p := &target{cmd: exec.CommandContext(ctx, bin, append([]string{"target"}, args...)...)}
	p.cmd.SysProcAttr = as
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
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

// transfer writes size bytes from one process to another, and reads them back.
func transfer(t *testing.T, bin string, client *control.Client, as *syscall.SysProcAttr, method, size string, during func(target int)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := startTarget(t, ctx, as, bin, client.Socket(), "1", method, size)
	during(p.cmd.Process.Pid)
	for _, what := range []struct{ command, says string }{{"write", ""}, {"read", size + " bytes read, 0 wrong\n"}} {
		c := exec.CommandContext(ctx, bin, append([]string{what.command, client.Socket(), "0", method, size}, p.args...)...)
		c.SysProcAttr = as
		if out, err := c.CombinedOutput(); err != nil || string(out) != what.says {
			t.Errorf("%s: %v: %s", what.command, err, out)
			cancel()
			break
		}
		if what.command == "write" {
			p.out.Scan()
			if got, want := p.out.Text(), size+" bytes came, 0 wrong"; got != want {
				t.Errorf("the target says %q, want %q", got, want)
			}
		}
	}
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("target: %v: %s", err, p.stderr.String())
	}
}

func TestTransfer(t *testing.T) {
	bin, client := build(t), start(t)
	for _, method := range []string{"gup", "touch", "uffd", "populate"} {
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

// TestTransferOfAnotherUser has clients of a user over whom pfd has no right: each starts a memory
// helper, which ends with the client.
func TestTransferOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a client of another user")
	}
	bin, client := build(t), start(t)
	for _, method := range []string{"gup", "touch"} {
		for _, size := range []string{"1", "100000", "4194304"} {
			t.Run(method+"/"+size, func(t *testing.T) {
				var helpers []int
				transfer(t, bin, client, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, method, size, func(target int) {
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

// helpersOf returns the memory helpers that a process's keepers have started.
func helpersOf(t *testing.T, pid int) (list []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		command, err := os.ReadFile(filepath.Join(name, "cmdline"))
		if err != nil || string(command) != "pfd\x00"+attach.HelperCommand+"\x00" {
			continue // another user's, or it has ended
		}
		if child, err := strconv.Atoi(filepath.Base(name)); err == nil && parentOf(parentOf(child)) == pid {
			list = append(list, child)
		}
	}
	return list
}

// parentOf returns a process's parent; 0: it has ended.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	var state string
	var parent int
	if _, scanned := fmt.Sscan(rest, &state, &parent); err != nil || scanned != nil {
		return 0
	}
	return parent
}

// Failures are reported, and the other side continues.
func TestFailures(t *testing.T) {
	bin, client := build(t), start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := startTarget(t, ctx, nil, bin, client.Socket(), "1", "gup", "4096")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no such node":  {[]string{"write", client.Socket(), "9", "gup", "1", p.args[0], "0"}, "pfd refused: no node 9 here"},
		"nothing there": {[]string{"write", client.Socket(), "0", "touch", "1", remote(p.args[0], 4, "0000000000001000"), "0"}, "status 2: an address is not mapped"},
		"another one":   {[]string{"write", client.Socket(), "0", "touch", "1", remote(p.args[0], 3, "00000001"), "0"}, "status 5: the target does not admit"},
		"read nothing":  {[]string{"read", client.Socket(), "0", "gup", "1", remote(p.args[0], 4, "0000000000001000"), "0"}, "status 2"},
		"read another":  {[]string{"read", client.Socket(), "0", "gup", "1", remote(p.args[0], 3, "00000001"), "0"}, "status 5"},
		"too much":      {[]string{"write", client.Socket(), "0", "gup", "4097", p.args[0], "0"}, "4097 bytes at offset 0 of 4096 exported bytes"},
		"no remote":     {[]string{"write", client.Socket(), "0", "gup", "1", "exanet2:0", "0"}, "is not of the form exanet2:NODE"},
		"no pfd":        {[]string{"target", client.Socket() + "x", "0", "gup", "1"}, "no pfd answers on"},
		"usage":         {nil, "usage:"},
		"other methods": {[]string{"target", client.Socket(), "0", "mlock", "1"}, "usage:"},
	} {
		out, err := exec.CommandContext(ctx, bin, c.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	// The error says why the socket cannot be reached: a killed pfd, a directory.
	dir := filepath.Join(public(t), "barred")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "s.attach"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	whys := map[*syscall.SysProcAttr]string{nil: "nobody listens on the socket that is there"}
	if os.Geteuid() == 0 {
		whys[&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4001, Gid: 4001}}] = "may not enter directory " + dir + ", of uid 0 with mode 0700"
	}
	for as, want := range whys {
		cmd := exec.CommandContext(ctx, bin, "target", filepath.Join(dir, "s"), "0", "gup", "1")
		cmd.SysProcAttr = as
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("want %q: %v, %s", want, err, out)
		}
	}
	// A kicked target reports that.
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
	if err := p.cmd.Wait(); err == nil || !strings.Contains(p.stderr.String(), "the attachment has ended") {
		t.Errorf("kicked: %v, %s", err, p.stderr.String())
	}
}

// remote returns a Remote's text with one part replaced.
func remote(text string, part int, other string) string {
	parts := strings.Split(text, ":")
	parts[part] = other
	return strings.Join(parts, ":")
}

// The client has no memory error and no leak, by the address sanitizer.
func TestSanitized(t *testing.T) {
	bin, client := build(t, "-fsanitize=address,undefined", "-fno-omit-frame-pointer"), start(t)
	for _, method := range []string{"gup", "touch", "uffd"} {
		t.Run(method, func(t *testing.T) {
			transfer(t, bin, client, nil, method, "100000", func(int) {})
		})
	}
}

// And by valgrind's memcheck, which also detects uninitialized memory. It has no userfaultfd.
func TestMemcheck(t *testing.T) {
	if _, err := os.Stat("/usr/include/valgrind/valgrind.h"); err != nil {
		const why = "no valgrind: `sh contrib/scripts/setup.sh test` installs it"
		if os.Getenv("STRICT") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	bin, client := build(t), start(t)
	checked := filepath.Join(filepath.Dir(bin), "checked")
	script := fmt.Sprintf("#!/bin/sh\nexec valgrind --quiet --leak-check=full --errors-for-leak-kinds=definite,indirect --error-exitcode=9 --log-file=%s.%%p %s \"$@\"\n", checked, bin)
	if err := os.WriteFile(checked, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"gup", "touch", "populate"} {
		t.Run(method, func(t *testing.T) {
			transfer(t, checked, client, nil, method, "100000", func(int) {})
		})
	}
	if !t.Failed() {
		return
	}
	logs, err := filepath.Glob(checked + ".*")
	for _, name := range logs {
		text, failed := os.ReadFile(name)
		err = errors.Join(err, failed)
		t.Logf("%s", text)
	}
	if err != nil {
		t.Error(err)
	}
}

// A freed buffer no longer counts among those whose missing pages pfd fills.
func TestFreedBuffers(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin, client := compile(t, dir, filepath.Join("..", "testdata", "alloc")), start(t)
	if out, err := exec.CommandContext(t.Context(), bin, client.Socket(), "100").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// Memory of exanet_alloc is shared with the device until it is freed, except under method uffd,
// where it is private.
func TestSharedBuffers(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin, client := compile(t, dir, filepath.Join("..", "testdata", "shared")), start(t)
	for _, method := range []string{"gup", "uffd"} {
		t.Run(method, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c := exec.CommandContext(ctx, bin, client.Socket(), method)
			var said bytes.Buffer
			c.Stderr = &said
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if line := bufio.NewScanner(out); !line.Scan() {
				t.Error("it is not ready")
			} else if domains, err := client.Domains(ctx, 0); err != nil || len(domains) != 1 {
				t.Errorf("%d domains, %v", len(domains), err)
				cancel()
			} else if _, err := client.Kick(ctx, 0, domains[0].Slot); err != nil {
				t.Error(err)
				cancel()
			}
			if err := c.Wait(); err != nil {
				t.Errorf("%v: %s", err, said.String())
			}
		})
	}
}
