package proctest

import (
	"bufio"
	_ "embed" // the helper's source
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/exanet/pfd/device"
)

//go:embed testdata/clonevm.c
var cloneVMSource []byte

// CloneVM is a process that executes another program while its old address
// space lives on in a process made by clone(CLONE_VM).
type CloneVM struct {
	PID    int
	Helper int // pid of that process, until the end of the test
	// VA is the address of a page of ones followed by an untouched page. After Exec the new image
	// has a page of 0x5a and an untouched page there.
	VA device.VA

	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

// StartCloneVM builds the helper in C (Go has no clone) and starts it. The test
// is skipped where there is no compiler.
func StartCloneVM(t testing.TB) *CloneVM {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("the helper is in C, for clone(CLONE_VM), and no gcc was found: ", err)
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "clonevm.c"), filepath.Join(dir, "clonevm")
	if err := os.WriteFile(src, cloneVMSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-Wall", "-Werror", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	cmd := exec.Command(bin)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error("clonevm: ", err)
		}
	})
	c := &CloneVM{PID: cmd.Process.Pid, t: t, in: in, out: bufio.NewScanner(out)}
	c.VA = device.VA(c.number())
	c.Helper = int(c.number())
	return c
}

func (c *CloneVM) number() uint64 {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("clonevm: no answer (%v)", c.out.Err())
	}
	v, err := strconv.ParseUint(c.out.Text(), 10, 64)
	if err != nil {
		c.t.Fatalf("clonevm: %v", err)
	}
	return v
}

// Exec executes the new image and returns when it has its page.
func (c *CloneVM) Exec() {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in); err != nil {
		c.t.Fatal(err)
	}
	c.number()
}

// Own returns, once, how many bytes of the new image's page are unchanged.
func (c *CloneVM) Own() int {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in); err != nil {
		c.t.Fatal(err)
	}
	return int(c.number())
}
