// Package proctest starts a process for tests to access: a second instance of the test binary,
// which has a keeper, and maps, protects, forks and executes on command.
package proctest

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
)

// Kinds of memory for Map, beside the path of a file to be mapped privately.
const (
	Anon     = "anon"     // private anonymous
	ReadOnly = "readonly" // the same, read-only
	None     = "none"     // the same, PROT_NONE
	Shared   = "shared"   // shared anonymous
	Memfd    = "memfd"    // a memfd, shared
)

const childEnv = "PFD_PROCTEST_CHILD"

// Main runs the tests for TestMain in place of m.Run and returns the exit code. In a child it
// serves the test that started it. Otherwise it fails if a test leaves a descriptor open; it
// waits for a goroutine that still closes one.
func Main(m *testing.M) int {
	if os.Getenv(childEnv) != "" {
		return child()
	}
	before, err := descriptors()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proctest:", err)
		return 1
	}
	code := m.Run()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		after, err := descriptors()
		if err != nil {
			fmt.Fprintln(os.Stderr, "proctest:", err)
			return 1
		}
		maps.DeleteFunc(after, func(fd, _ string) bool { _, ok := before[fd]; return ok })
		if len(after) == 0 {
			return code
		}
		if time.Now().After(deadline) {
			for fd, what := range after {
				fmt.Fprintf(os.Stderr, "descriptor %s (%s) left open\n", fd, what)
			}
			return 1
		}
	}
}

// descriptors returns this process's descriptors and what each refers to, without those of the Go
// runtime.
func descriptors() (map[string]string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("list descriptors: %w", err)
	}
	fds := make(map[string]string)
	for _, e := range entries {
		what, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(what, "anon_inode:[event") || strings.HasSuffix(what, "/fd") {
			continue // the listing itself; netpoll's epoll and eventfd
		}
		fds[e.Name()] = what
	}
	return fds, nil
}

// patience bounds the wait for a process to end or a descriptor to close. Defined here.
const patience = 2 * time.Minute

// PIDFD opens a pidfd of the process pid, which must exist. It is closed at the end of the test.
func PIDFD(t testing.TB, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd of process %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// AwaitEnd returns when the process behind a pidfd has ended.
func AwaitEnd(t testing.TB, pidfd int) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n != 1:
			t.Fatalf("a process that should have ended still runs (%v)", err)
		default:
			return
		}
	}
}

// Child is a process that a test controls. Its methods end the test if the child does not answer
// or fails.
type Child struct {
	t        testing.TB
	cmd      *exec.Cmd
	in       *os.File
	out      *bufio.Scanner
	keeper   int // pid
	keeperFD int // the test's
}

// Start starts a child, which ends at the end of the test.
func Start(t testing.TB) *Child {
	t.Helper()
	c := &Child{t: t, cmd: exec.Command("/proc/self/exe")}
	// The race detector sleeps for a second at the end of a program.
	c.cmd.Env = append(os.Environ(), childEnv+"=1", "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdin, c.cmd.Stdout = inR, outW
	c.in, c.out = inW, bufio.NewScanner(outR)
	err = c.cmd.Start()
	inR.Close()
	outW.Close()
	t.Cleanup(func() {
		inW.Close()
		if c.cmd.ProcessState == nil && c.cmd.Process != nil {
			// The child ends at the end of its input and reaps its forks. A missing answer has
			// reported any failure.
			_ = c.cmd.Wait()
		}
		outR.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	c.ready()
	return c
}

func (c *Child) ready() {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("child does not start (%v)", c.out.Err())
	}
	if _, err := fmt.Sscanf(c.out.Text(), "ready %d", &c.keeper); err != nil {
		c.t.Fatalf("child said %q, want ready and the pid of its keeper: %v", c.out.Text(), err)
	}
	c.keeperFD = PIDFD(c.t, c.keeper)
}

func (c *Child) send(op, kind string, va device.VA, pages int, arg uint64) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, "%s %s %d %d %d\n", op, kind, uint64(va), pages, arg); err != nil {
		c.t.Fatalf("child: %s: %v", op, err)
	}
}

func (c *Child) call(op, kind string, va device.VA, pages int, arg uint64) (uint64, error) {
	c.t.Helper()
	c.send(op, kind, va, pages, arg)
	if !c.out.Scan() {
		c.t.Fatalf("child: %s: no answer (%v)", op, c.out.Err())
	}
	if what, failed := strings.CutPrefix(c.out.Text(), "error "); failed {
		return 0, fmt.Errorf("child: %s %s: %s", op, kind, what)
	}
	v, err := strconv.ParseUint(c.out.Text(), 10, 64)
	if err != nil {
		c.t.Fatalf("child: %s: %v", op, err)
	}
	return v, nil
}

func (c *Child) must(op, kind string, va device.VA, pages int, arg uint64) uint64 {
	c.t.Helper()
	v, err := c.call(op, kind, va, pages, arg)
	if err != nil {
		c.t.Fatal(err)
	}
	return v
}

// PID returns the child's pid.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Keeper returns the pid of the child's keeper, which changes with Exec.
func (c *Child) Keeper() int { return c.keeper }

// PIDFDs opens pidfds of the child and of its keeper, for proc.Open. They are closed at the end
// of the test.
func (c *Child) PIDFDs() (pidfd, keeperfd int) {
	c.t.Helper()
	return PIDFD(c.t, c.PID()), PIDFD(c.t, c.keeper)
}

// EndKeeper makes the child end and reap its keeper, which frees the pid.
func (c *Child) EndKeeper() {
	c.t.Helper()
	c.must("endkeeper", "-", 0, 0, 0)
}

// EndLeader ends the first thread of the child while the others go on, so that its pid is a
// zombie's, without memory. It returns false if the Go runtime runs something else on that
// thread: start another child.
func (c *Child) EndLeader() bool {
	c.t.Helper()
	if c.must("endleader", "-", 0, 0, 0) == 0 {
		return false
	}
	c.t.Cleanup(c.Kill) // the child cannot return from its main function
	return true
}

// Map maps memory of a kind at an address of the kernel's choice and returns the address.
func (c *Child) Map(kind string, pages int) device.VA {
	c.t.Helper()
	return device.VA(c.must("map", kind, 0, pages, 0))
}

// MapAt maps memory at an unmapped address.
func (c *Child) MapAt(kind string, va device.VA, pages int) error {
	c.t.Helper()
	_, err := c.call("map", kind, va, pages, 0)
	return err
}

// Protect calls mprotect.
func (c *Child) Protect(va device.VA, pages, prot int) {
	c.t.Helper()
	c.must("protect", "-", va, pages, uint64(prot))
}

// Advise calls madvise.
func (c *Child) Advise(va device.VA, pages, advice int) error {
	c.t.Helper()
	_, err := c.call("advise", "-", va, pages, uint64(advice))
	return err
}

// Unmap calls munmap.
func (c *Child) Unmap(va device.VA, pages int) {
	c.t.Helper()
	c.must("unmap", "-", va, pages, 0)
}

// Fill writes b to every byte.
func (c *Child) Fill(va device.VA, pages int, b byte) {
	c.t.Helper()
	c.must("fill", "-", va, pages, uint64(b))
}

// Read reads the first byte of each page.
func (c *Child) Read(va device.VA, pages int) {
	c.t.Helper()
	c.must("read", "-", va, pages, 0)
}

// Count counts the bytes that equal b.
func (c *Child) Count(va device.VA, pages int, b byte) int {
	c.t.Helper()
	return int(c.must("count", "-", va, pages, uint64(b)))
}

// Fork makes the child fork a process with a copy of its memory, which waits to be killed, and
// returns its pid.
func (c *Child) Fork() int {
	c.t.Helper()
	return int(c.must("fork", "-", 0, 0, 0))
}

// ForkAs is like Fork, for a process with the given free pid. It needs CAP_CHECKPOINT_RESTORE.
func (c *Child) ForkAs(pid int) error {
	c.t.Helper()
	_, err := c.call("fork", "-", 0, 0, uint64(pid))
	return err
}

// Reap ends a forked process.
func (c *Child) Reap(pid int) {
	c.t.Helper()
	c.must("reap", "-", 0, 0, uint64(pid))
}

// Exec makes the child execute itself anew, which discards its memory. It returns when the keeper
// of the old memory has ended.
func (c *Child) Exec() {
	c.t.Helper()
	old := c.keeperFD
	c.send("exec", "-", 0, 0, 0)
	c.ready()
	AwaitEnd(c.t, old)
}

// Kill kills and reaps the child and returns when its keeper has ended, too.
func (c *Child) Kill() {
	c.t.Helper()
	if c.cmd.ProcessState != nil {
		return
	}
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.cmd.Wait() // it reports the signal
	AwaitEnd(c.t, c.keeperFD)
}

// Lock calls mlock.
func (c *Child) Lock(va device.VA, pages int) error {
	c.t.Helper()
	_, err := c.call("lock", "-", va, pages, 0)
	return err
}
