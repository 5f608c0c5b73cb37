package deploy

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// Under method gup, memory of Alloc is registered with a userfaultfd that pfd also holds. pfd
// closes it with the attachment.
func TestFilledByUserfaultfd(t *testing.T) {
	socket := newPlace(t).file("pfd.sock")
	p := start(t, "pfd", "--socket", socket)
	newDaemon(t, socket, p).ready()
	has := func() int { return userfaultfds(t, p.cmd.Process.Pid) }
	ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: socket, Method: rdma.MethodGUP})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	own := has() // the view's
	if own == 0 {
		t.Skip("this kernel has no view of shared memory: Linux 5.14 has it")
	}
	for i := range 2 {
		b, err := ep.Alloc(8 << 10)
		if err != nil {
			t.Fatal(err)
		}
		if flags := flagsAt(t, b.VA()); !strings.Contains(flags, " uw ") {
			t.Skipf("not registered for write-protect faults (arm64: Linux 6.10 has them): %s", flags)
		}
		// pfd closes the descriptor that came with the request after its answer.
		until(t, "pfd to have one of the process's for each share", func() bool { return has() == own+1+i })
	}
	if err := ep.Close(); err != nil {
		t.Error(err)
	}
	until(t, "pfd to close them", func() bool { return has() == 0 })
}

// flagsAt returns the flags of the mapping that begins at va (proc_pid_smaps(5)).
func flagsAt(t *testing.T, va device.VA) string {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := fmt.Sprintf("%x-", uint64(va))
	found := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if found = found || strings.HasPrefix(line, at); found && strings.HasPrefix(line, "VmFlags:") {
			return line
		}
	}
	t.Fatalf("no mapping at %v", va)
	return ""
}

// userfaultfds returns how many userfaultfds a process has.
func userfaultfds(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if name, err := os.Readlink(dir + "/" + e.Name()); err == nil && name == "anon_inode:[userfaultfd]" {
			n++
		}
	}
	return n
}
