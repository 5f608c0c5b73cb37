package proc

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// countsAge is how old the counts of a control group may be. With ranks of MPI under half the
// memory that they use 100 ms were enough, and 500 ms were not.
const countsAge = 50 * time.Millisecond

// FreshCounts makes the kernel add up what the process's control group has in memory, if that was
// not done for 50 ms. Call it before a page-in. Reclaim (up to Linux 6.18 at least, without MGLRU)
// compares the lists of active and inactive pages by counts that the kernel otherwise adds up every
// two seconds. A page that another process has accessed twice is active. If many are accessed in
// less than that time, the old counts say that the inactive list, which is empty, is long enough.
// Reclaim then finds nothing, and the kernel ends a process of a group that has reached its limit,
// although there is swap.
func (p *Process) FreshCounts() {
	now := time.Now().UnixNano()
	last := p.counted.Load()
	if now-last < int64(countsAge) || !p.counted.CompareAndSwap(last, now) || !p.enter() {
		return
	}
	defer p.leave()
	fd, err := p.openat("cgroup", unix.O_RDONLY)
	if err != nil {
		return // the process has ended: its page-in fails
	}
	groups := os.NewFile(uintptr(fd), "cgroup")
	defer groups.Close()
	text, err := io.ReadAll(groups)
	if err != nil {
		return
	}
	// The read adds them up. Where the file cannot be read, the counts stay what they are.
	if name := countsFile(text); name != "" {
		_, _ = os.ReadFile(name)
	}
}

// countsFile returns the file memory.stat of a process's control group, from the text of its
// /proc/PID/cgroup (cgroups(7)), or nothing for the topmost group, which has no limit. The
// hierarchies are where systemd mounts them.
func countsFile(text []byte) string {
	const mounted = "/sys/fs/cgroup"
	name := ""
	for line := range bytes.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		switch {
		case len(f) != 3 || f[2] == "/":
		case f[1] == "" && name == "":
			name = filepath.Join(mounted, f[2], "memory.stat")
		case slices.Contains(strings.Split(f[1], ","), "memory"):
			name = filepath.Join(mounted, "memory", f[2], "memory.stat")
		}
	}
	return name
}
