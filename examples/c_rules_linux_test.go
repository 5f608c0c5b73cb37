package examples

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/rdma"
)

// libexanet decides as package rdma does: the cases are those of rdma's tests.
func TestRules(t *testing.T) {
	dir := public(t)
	library(t, dir)
	out, err := exec.CommandContext(t.Context(), compile(t, dir, filepath.Join("..", "testdata", "rules")), filepath.Join("..", "attach", "testdata", "rules.txt")).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// useEnv passes a socket's path to a process that does in Go what testdata/limits.c does in C.
const useEnv = "EXANET_TEST_USE"

// useGo attaches, allocates, writes, reads and frees, and returns "ok" or what failed.
func useGo(socket string) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: socket})
	if err != nil {
		return "attach: " + err.Error()
	}
	buf, err := ep.Alloc(1 << 20)
	if err != nil {
		return "alloc: " + err.Error()
	}
	remote, err := ep.Export(buf.Bytes())
	if err != nil {
		return "export: " + err.Error()
	}
	from, back := []byte(strings.Repeat("w", 65536)), make([]byte, 65536)
	t, err := ep.Write(ctx, rdma.WriteRequest{Src: from, Dst: remote})
	if err == nil {
		err = t.Wait(ctx)
	}
	if err != nil {
		return "write: " + err.Error()
	}
	t, err = ep.Read(ctx, rdma.ReadRequest{Src: remote, Dst: back})
	if err == nil {
		err = t.Wait(ctx)
	}
	switch {
	case err != nil:
		return "read: " + err.Error()
	case !slices.Equal(from, back) || !slices.Equal(from, buf.Bytes()[:len(from)]):
		return "other bytes came than were sent"
	}
	if err := buf.Free(); err != nil {
		return "free: " + err.Error()
	}
	if err := ep.Close(); err != nil {
		return "close: " + err.Error()
	}
	return "ok"
}

// users are the users of clients: pfd's own, for whom pfd moves bytes itself, and as root another,
// whose client has a memory helper.
func users(t *testing.T) map[string]*syscall.SysProcAttr {
	t.Helper()
	if os.Getuid() != 0 {
		t.Log("only root can start a client of another user: those are left out")
		return map[string]*syscall.SysProcAttr{"": nil}
	}
	return map[string]*syscall.SysProcAttr{"": nil, "of another user": {Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}}
}

// said runs a client under a limit (prlimit(1)) and returns its first line.
func said(t *testing.T, as *syscall.SysProcAttr, limit string, env string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, "prlimit", append([]string{limit, "--"}, args...)...)
	c.SysProcAttr = as
	c.Env = append(os.Environ(), env, "RUNTIME_DIRECTORY=/nowhere", "XDG_RUNTIME_DIR=/nowhere")
	out, err := c.CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	if line == "" {
		line = fmt.Sprint(err)
	}
	return line
}

// Both libraries agree beyond the rules of attach/testdata/rules.txt.
func TestBothLibraries(t *testing.T) {
	dir := public(t)
	library(t, dir)
	bin := compile(t, dir, filepath.Join("..", "testdata", "limits"))
	t.Run("limits", func(t *testing.T) { limits(t, dir, bin) })
	t.Run("limits of pfd", func(t *testing.T) { limitsOfPfd(t, bin) })
	t.Run("fork", func(t *testing.T) { forkedChild(t, bin) })
	t.Run("wait", func(t *testing.T) { noChild(t, bin) })
	t.Run("small", func(t *testing.T) { smallStack(t, bin) })
	t.Run("header", func(t *testing.T) {
		for _, standard := range []string{"c90", "c99", "c11"} { // a program of any C standard can include them
			for _, header := range []string{"exanet.h", "exanet_stream.h"} {
				out, err := exec.CommandContext(t.Context(), "gcc", "-std="+standard, "-pedantic-errors", "-Wall", "-Wextra", "-Wstrict-prototypes", "-Werror",
					"-fsyntax-only", "-x", "c", filepath.Join(dir, header)).CombinedOutput()
				if err != nil {
					t.Errorf("%s, %s: %v\n%s", header, standard, err, out)
				}
			}
		}
	})
	t.Run("stranger", func(t *testing.T) { strangers(t, dir, bin) })
}

// The libraries work if files may not be large, and without free descriptors they name the limit.
func limits(t *testing.T, dir, bin string) {
	client := start(t)
	self := filepath.Join(dir, "self")
	if err := copyFile(self, "/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	for name, as := range users(t) {
		for _, limit := range []string{"--fsize=1048575", "--fsize=65536", "--fsize=4095", "--fsize=0"} {
			if got := said(t, as, limit, "", bin, client.Socket(), "use"); got != "ok" {
				t.Errorf("C %s: %s: %s", name, limit, got)
			}
			if got := said(t, as, limit, useEnv+"="+client.Socket(), self); got != "ok" {
				t.Errorf("Go %s: %s: %s", name, limit, got)
			}
		}
		var enough bool
		for n := 4; n < 40 && !enough; n++ { // each call that opens one is in turn the first that fails
			got := said(t, as, "--nofile="+strconv.Itoa(n), "", bin, client.Socket(), "use")
			if enough = got == "ok"; !enough && !strings.Contains(got, "ulimit -n") {
				t.Errorf("C %s: %d descriptors: %s", name, n, got)
			}
		}
		if !enough {
			t.Errorf("C %s: 39 descriptors are too few", name)
		}
		enough = false
		for n := 12; n < 60 && !enough; n++ { // the Go runtime has some open
			got := said(t, as, "--nofile="+strconv.Itoa(n), useEnv+"="+client.Socket(), self)
			if enough = got == "ok"; !enough && !strings.Contains(got, "ulimit -n") {
				t.Errorf("Go %s: %d descriptors: %s", name, n, got)
			}
		}
		if !enough {
			t.Errorf("Go %s: 59 descriptors are too few", name)
		}
		if as == nil { // root has no process limit, and no helper
			continue
		}
		for limit, want := range map[string]string{"--nproc=0": "making a keeper: ", "--as=300000000": "memory helper"} {
			if got := said(t, as, limit, "", bin, client.Socket(), "use"); !strings.Contains(got, want) || !strings.Contains(got, "ulimit -") {
				t.Errorf("C %s: %s: %s", name, limit, got)
			}
		}
		if got := said(t, as, "--nofile=64", "", bin, client.Socket(), "flight"); !strings.Contains(got, "under way in sockets") || !strings.Contains(got, "ulimit -n") {
			t.Errorf("C %s: descriptors under way: %s", name, got)
		}
	}
}

// A pfd at one of its own limits names it.
func limitsOfPfd(t *testing.T, bin string) {
	socket, pfd := startProcess(t, 1, -1)
	limit := func(which int, most uint64) {
		var l unix.Rlimit
		err := unix.Prlimit(pfd.Pid, which, nil, &l)
		if l.Cur = l.Max; err == nil && most < l.Max {
			l.Cur = most
		}
		if err := errors.Join(err, unix.Prlimit(pfd.Pid, which, &l, nil)); err != nil {
			t.Fatal(err)
		}
	}
	for name, as := range users(t) {
		limit(unix.RLIMIT_FSIZE, 12288)
		if got := said(t, as, "--core=0", "", bin, socket, "use"); !strings.Contains(got, "pfd refused: pfd: create the attachment's memory") || !strings.Contains(got, "ulimit -f") {
			t.Errorf("%s: files of pfd may have 12 KiB: %s", name, got)
		}
		if as != nil {
			limit(unix.RLIMIT_FSIZE, 65536)
			if got := said(t, as, "--core=0", "", bin, socket, "use"); !strings.Contains(got, "pfd refused: pfd: create a memory port") || !strings.Contains(got, "ulimit -f") {
				t.Errorf("%s: files of pfd may have 64 KiB: %s", name, got)
			}
		}
		limit(unix.RLIMIT_FSIZE, unix.RLIM_INFINITY)
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pfd.Pid))
		if err != nil {
			t.Fatal(err)
		}
		enough := false
		for more := 1; more < 40 && !enough; more++ {
			limit(unix.RLIMIT_NOFILE, uint64(len(fds)+more))
			got := said(t, as, "--core=0", "", bin, socket, "use")
			if enough = got == "ok"; !enough && !strings.Contains(got, "ulimit -n") {
				t.Errorf("%s: pfd may have %d descriptors more: %s", name, more, got)
			}
		}
		if !enough {
			t.Errorf("%s: pfd with 39 descriptors more refuses", name)
		}
		limit(unix.RLIMIT_NOFILE, unix.RLIM_INFINITY)
	}
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// A forked child cannot use its parent's attachment, and does not disturb it.
func forkedChild(t *testing.T, bin string) {
	client := start(t)
	for name, as := range users(t) {
		if got := said(t, as, "--core=0", "", bin, client.Socket(), "fork"); got != "ok" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Every function works on a thread with the smallest stack. The library's own threads have small
// stacks, because a process that locks all its memory has them in memory whole. Waits for their
// ends do not depend on the time of day.
func smallStack(t *testing.T, bin string) {
	client := start(t)
	for name, as := range users(t) {
		for _, action := range []string{"small", "clock"} {
			if got := said(t, as, "--core=0", "", bin, client.Socket(), action); got != "ok" {
				t.Errorf("%s: %s: %s", name, action, got)
			}
		}
	}
}

// Processes that libexanet starts are not returned by a wait of the program, and leave no zombie.
func noChild(t *testing.T, bin string) {
	client := start(t)
	for name, as := range users(t) {
		if got := said(t, as, "--core=0", "", bin, client.Socket(), "wait"); got != "ok" {
			t.Errorf("%s: %s", name, got)
		}
		if as == nil {
			continue
		}
		c := exec.CommandContext(t.Context(), bin, client.Socket(), "hold")
		c.SysProcAttr = as
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "attached" {
			t.Fatalf("%q", lines.Text())
		}
		helpers := helpersOf(t, c.Process.Pid)
		if len(helpers) != 1 || syscall.Kill(helpers[0], syscall.SIGKILL) != nil {
			t.Fatalf("helpers %v, want one that can be killed", helpers)
		}
		for deadline := time.Now().Add(patience); syscall.Kill(helpers[0], 0) == nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the killed helper %d is not reaped", helpers[0])
			}
		}
		in.Close()
		if lines.Scan(); lines.Text() != "ok" {
			t.Errorf("its helper was killed: %s", lines.Text())
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// libexanet attaches to another user's pfd only if that user is named.
func strangers(t *testing.T, dir, bin string) {
	if os.Geteuid() != 0 {
		t.Skip("not root: becoming another user")
	}
	const stranger = 3100
	socket := filepath.Join(dir, "s")
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrUnix{Name: socket + attach.SocketSuffix}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket+attach.SocketSuffix, 0o666); err != nil {
		t.Fatal(err)
	}
	// The credentials are those of the listening thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(uid int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			t.Fatal(errno)
		}
	}
	become(stranger)
	err = unix.Listen(l, 8)
	become(0)
	if err != nil {
		t.Fatal(err)
	}
	as := users(t)["of another user"]
	if got := said(t, as, "--core=0", "", bin, socket, "use"); !strings.Contains(got, "another user serves the socket: uid 3100") {
		t.Errorf("a stranger's: %s", got)
	}
	if got := said(t, as, "--core=0", "", bin, socket, "use", "3101"); !strings.Contains(got, "another user serves the socket") {
		t.Errorf("another one is named: %s", got)
	}
	first := make(chan int, 1)
	go func() {
		for {
			c, _, err := unix.Accept(l)
			if err != nil {
				return
			}
			var b [512]byte
			n, _ := unix.Read(c, b[:])
			unix.Close(c)
			if n > 0 {
				first <- n
				return
			}
		}
	}()
	if got := said(t, as, "--core=0", "", bin, socket, "use", strconv.Itoa(stranger)); !strings.Contains(got, "closed the connection") {
		t.Errorf("who is named: %s", got)
	}
	if n := <-first; n != attach.HelloSize {
		t.Errorf("%d bytes came first, want a hello", n)
	}
	if got := said(t, as, "--core=0", "", "unshare", "-U", bin, socket, "use"); !strings.Contains(got, "uid 65534") {
		t.Errorf("in a namespace that maps no user: %s", got)
	}
}
