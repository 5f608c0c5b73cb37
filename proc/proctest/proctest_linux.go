// Package proctest gives tests a process to touch: the test binary started
// anew, which maps, protects, forks and executes as it is told.
package proctest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

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

// Main is what TestMain calls in place of m.Run: in a child it serves the test
// that started it. Else it runs the tests and fails where one of them has left
// a descriptor open. It gives the exit code.
func Main(m *testing.M) int {
	if os.Getenv(childEnv) != "" {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "proctest child:", err)
			return 1
		}
		return 0
	}
	before, err := descriptors()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proctest:", err)
		return 1
	}
	code := m.Run()
	after, err := descriptors()
	if err != nil {
		fmt.Fprintln(os.Stderr, "proctest:", err)
		return 1
	}
	for fd, what := range after {
		if _, ok := before[fd]; !ok {
			fmt.Fprintf(os.Stderr, "descriptor %s (%s) left open\n", fd, what)
			code = 1
		}
	}
	return code
}

// descriptors lists this process's descriptors and what they are, without those
// that the Go runtime keeps for itself.
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

// Child is a process under a test's orders. Its methods end the test where the
// child does not do as it is told.
type Child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

// Start starts a child, which ends with the test.
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
			// Ends by itself at the end of its input, and reaps its forks;
			// a failure was reported by what it did not answer.
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
	if !c.out.Scan() || c.out.Text() != "ready" {
		c.t.Fatalf("child said %q (%v), want ready", c.out.Text(), c.out.Err())
	}
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

// PID gives the child's pid.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Map maps memory of a kind, where the kernel likes, and gives its address.
func (c *Child) Map(kind string, pages int) device.VA {
	c.t.Helper()
	return device.VA(c.must("map", kind, 0, pages, 0))
}

// MapAt maps memory at an address where nothing is mapped yet.
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

// Fork makes the child fork a process with a copy of its memory, which waits
// for its end, and gives its pid.
func (c *Child) Fork() int {
	c.t.Helper()
	return int(c.must("fork", "-", 0, 0, 0))
}

// Reap ends a forked process.
func (c *Child) Reap(pid int) {
	c.t.Helper()
	c.must("reap", "-", 0, 0, uint64(pid))
}

// Exec makes the child execute itself anew; it then knows none of its memory.
func (c *Child) Exec() {
	c.t.Helper()
	c.send("exec", "-", 0, 0, 0)
	c.ready()
}

// Kill kills the child, reaps it where wanted, and returns when it is dead.
func (c *Child) Kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.cmd.Wait() // it reports the signal
}

// Lock calls mlock.
func (c *Child) Lock(va device.VA, pages int) error {
	c.t.Helper()
	_, err := c.call("lock", "-", va, pages, 0)
	return err
}
