package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memoryGroup is a memory control group of the test, version 1 or 2, whichever has the memory
// controller here.
type memoryGroup struct {
	t               *testing.T
	dir             string
	reclaim, amount string // the file that reclaims memory, and the value to write
}

func newMemoryGroup(t *testing.T) *memoryGroup {
	t.Helper()
	g := newGroup(t, "memory")
	if _, err := os.Stat(filepath.Join(g.dir, g.reclaim)); err != nil {
		t.Skipf("no memory control group is available: %v (cgroup.subtree_control of the group above does not name memory)", err)
	}
	return g
}

// newGroup creates a control group of the test below this process's own.
func newGroup(t *testing.T, controller string) *memoryGroup {
	t.Helper()
	needRoot(t, "making a control group")
	g, err := findGroup(controller)
	if err != nil {
		t.Skipf("no control group is available: %v", err)
	}
	g.t = t
	if g.dir, err = os.MkdirTemp(g.dir, "exanet-test-"); err != nil {
		t.Skipf("no control group is available: %v", err)
	}
	t.Cleanup(func() {
		// The kernel notifies the group of its last process's end a little later.
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(g.dir)
			if err == nil {
				return
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
	return g
}

// findGroup returns this process's own group.
func findGroup(controller string) (*memoryGroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	groups := map[string]string{} // key: controllers; value: path
	for line := range strings.Lines(string(own)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			groups[f[1]] = f[2]
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	for s := bufio.NewScanner(mounts); s.Scan(); {
		f := strings.Fields(s.Text())
		dash := slices.Index(f, "-")
		if dash < 0 || dash+3 >= len(f) {
			continue
		}
		switch kind, options := f[dash+1], strings.Split(f[dash+3], ","); {
		case kind == "cgroup2":
			dir := filepath.Join(f[4], groups[""])
			if text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")); err != nil || !slices.Contains(strings.Fields(string(text)), controller) {
				continue
			}
			// Refused where the group has processes and is not the topmost one; the
			// caller then finds nothing in the group that it makes.
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0)
			return &memoryGroup{dir: dir, reclaim: "memory.reclaim", amount: "1G"}, nil
		case kind == "cgroup" && slices.Contains(options, controller):
			return &memoryGroup{dir: filepath.Join(f[4], groups[findKey(groups, controller)]), reclaim: "memory.force_empty", amount: "0"}, nil
		}
	}
	return nil, fmt.Errorf("the %s controller is not mounted", controller)
}

// findKey returns the controllers' names of the group that has controller.
func findKey(groups map[string]string, controller string) string {
	for names := range groups {
		if slices.Contains(strings.Split(names, ","), controller) {
			return names
		}
	}
	return ""
}

func (g *memoryGroup) add(pid int) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		g.t.Fatal(err)
	}
}

// usage returns how many bytes the group is charged for.
func (g *memoryGroup) usage() (n int) {
	g.t.Helper()
	b, err := os.ReadFile(filepath.Join(g.dir, "memory.current"))
	if err != nil {
		b, err = os.ReadFile(filepath.Join(g.dir, "memory.usage_in_bytes")) // version 1
	}
	if err == nil {
		n, err = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// push makes the kernel reclaim memory from the group's processes, as it does when the machine
// is short of memory: it chooses the pages, and swaps. A memory limit would also do that, but
// the kernel may kill the process (docs/mpi.md, "Memory limits").
func (g *memoryGroup) push() error {
	err := os.WriteFile(filepath.Join(g.dir, g.reclaim), []byte(g.amount), 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINTR) {
		return nil // less memory was reclaimable
	}
	return err
}

// swappedOut counts the swapped-out pages of a buffer (bit 62: admin-guide/mm/pagemap.rst).
func swappedOut(p *proxy, id string) (n int) {
	p.t.Helper()
	for _, e := range p.must(order{Op: "pagemap", ID: id}).Bits {
		n += int(e >> 62 & 1)
	}
	return n
}

// The kernel continually reclaims memory from a target: each page-in reads from swap, and its
// pages are swapped out again. The target's own transfers are slow but arrive; another domain
// is not affected.
func TestMemoryPressure(t *testing.T) {
	zramSwap(t, "256M")
	w := start(t)
	b := w.bystander(attachOrder{})
	const size = 16 << 20
	elsewhere := newMemoryGroup(t)
	stranger := w.spawn("stranger", 0)
	elsewhere.add(stranger.pid())
	stranger.buffer("b", "anonymous", size, 1)
	for _, method := range []string{"gup", "touch"} { // by pfd, and by the process itself
		t.Run(method, func(t *testing.T) {
			g := newMemoryGroup(t)
			w.during(t)
			p := w.pair(method, "pa")
			g.add(p.to.pid())
			p.from.buffer("src", "anonymous", size, 5)
			m := p.to.buffer("dst", "anonymous", size, 6)
			quiet := b.p99()
			var rounds int
			// with runs look and trouble while the transfers continue.
			with := func(look func(), trouble func() error) {
				t.Helper()
				var enough atomic.Bool
				over := make(chan error, 2)
				rounds = 0
				go func() {
					var err error
					for ; err == nil && (!enough.Load() || rounds == 0); rounds++ {
						err = transfer(p.from, "x", m.Remote, size)
					}
					over <- err
				}()
				go func() {
					var err error
					for ; err == nil && !enough.Load(); time.Sleep(10 * time.Millisecond) {
						err = trouble()
					}
					over <- err
				}()
				look()
				enough.Store(true)
				if err := errors.Join(<-over, <-over); err != nil {
					t.Fatal(err)
				}
			}
			// The effect of the same load on a bystander if the pressure is on a process
			// without an attachment: the few CPUs are shared.
			var beside time.Duration
			with(func() { beside = b.p99() }, func() error {
				if _, err := stranger.do(order{Op: "fill", ID: "b", Seed: 1}); err != nil {
					return err
				}
				return elsewhere.push()
			})
			out := 0
			// Recently used pages are swapped out at the second or third scan.
			w.until("most of the buffer is in swap", func() bool {
				if err := g.push(); err != nil {
					t.Fatal(err)
				}
				out = swappedOut(p.to, "dst")
				return out > size/4096*3/4
			})
			majors := func() uint64 { return w.count(1, "faults_major_total") }
			before, moved := majors(), swapMoved(t)
			with(func() { undisturbed(t, b, max(quiet, beside)) }, g.push)
			p.to.holds("dst", 5, 0, size)
			in, off := swapMoved(t).since(moved)
			t.Logf("p99 alone %v; with the same transfers, and the pressure on a process without an attachment: %v", quiet, beside)
			t.Logf("%d transfers of %d MiB, %d of %d pages in swap at first; meanwhile %d pages came from swap and %d went; %d major faults",
				rounds, size>>20, out, size/4096, in, off, majors()-before)
			if in < uint64(out) || off == 0 {
				t.Error("there was no pressure")
			}
			if majors() == before && method != "touch" {
				t.Error("no major fault was counted")
			}
			p.kill()
		})
	}
	b.fine()
}

// transfer makes one write and waits for it, without ending the test at an error.
func transfer(p *proxy, id, remote string, size uint64) error {
	for _, o := range []order{{Op: "write", ID: id, Kind: "src", Remote: remote, Size: size}, {Op: "wait", ID: id}} {
		if r, err := p.do(o); err != nil || r.Err != "" || r.Code != 0 {
			return fmt.Errorf("transfer %s, %s: code %d, %s %s: %w", id, o.Op, r.Code, r.Text, r.Err, err)
		}
	}
	return nil
}

// swapCount is how many pages the machine has read from and written to swap.
type swapCount struct{ in, out uint64 }

func (c swapCount) since(old swapCount) (in, out uint64) { return c.in - old.in, c.out - old.out }

func swapMoved(t *testing.T) (c swapCount) {
	t.Helper()
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var n uint64
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			continue
		}
		switch name {
		case "pswpin":
			c.in = n
		case "pswpout":
			c.out = n
		}
	}
	return c
}

// exanetctl's own test of swapped memory: it checks that the pages are in swap (bit 62) before
// it writes. If nothing can be swapped it reports why and exits with 4.
func TestWriteIntoSwappedMemory(t *testing.T) {
	needRoot(t, "making swap")
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil {
		t.Fatal(err)
	}
	exanetctl, err := exanetctlProgram()
	if err != nil {
		t.Fatal(err)
	}
	w := start(t)
	write := func() (string, error) {
		cmd := exec.CommandContext(w.ctx(), exanetctl, "--socket", w.socket(), "write", "--size", "256KiB", "--count", "5", "--dst", "swapped")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if strings.Count(string(swaps), "\n") > 1 {
		t.Logf("not tried without swap: this machine has some:\n%s", swaps)
	} else {
		out, err := write()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(out, "add swap") {
			t.Errorf("without swap: %v\n%s", err, out)
		}
		t.Logf("without swap: %s", strings.TrimSpace(out))
	}
	zramSwap(t, "64M")
	before := w.count(1, "faults_major_total")
	out, err := write()
	if err != nil || !strings.Contains(out, "5, 0 failed") || !strings.Contains(out, "every byte is right") {
		t.Errorf("with swap: %v\n%s", err, out)
	}
	if n := w.count(1, "faults_major_total") - before; n < 5 { // the kernel may page in many pages per fault
		t.Errorf("%d major faults in 5 transfers into pages that were all in swap", n)
	}
}
