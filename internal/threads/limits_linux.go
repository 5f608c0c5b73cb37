package threads

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// limits limit the tasks of this process: the pids controllers of its cgroup and its ancestors,
// which may be moved and changed at any time, and RLIMIT_NPROC.
type limits struct {
	cgroup []byte // /proc/self/cgroup, when the files were opened
	groups []group
}

// group is a cgroup with a limit of tasks.
type group struct{ limit, tasks *os.File } // pids.max, pids.current

// room returns how many more tasks can be created, as far as is visible.
func (l *limits) room() int {
	if refused() {
		return 0
	}
	if now, err := os.ReadFile("/proc/self/cgroup"); err == nil && !bytes.Equal(now, l.cgroup) {
		l.open(now)
	}
	room := userRoom()
	for _, g := range l.groups {
		limit, ok := number(g.limit)
		tasks, known := number(g.tasks)
		if ok && known {
			room = min(room, max(limit-tasks, 0))
		}
	}
	return room
}

// open opens the files of all visible cgroups of this process. They stay open because a sandbox
// may forbid opening them later.
func (l *limits) open(cgroup []byte) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	var groups []group
	for _, dir := range directories(string(cgroup), string(mounts)) {
		limit, err := os.Open(filepath.Join(dir, "pids.max"))
		if err != nil {
			continue // the root cgroup has no limit
		}
		tasks, err := os.Open(filepath.Join(dir, "pids.current"))
		if err != nil {
			_ = limit.Close()
			continue
		}
		groups = append(groups, group{limit, tasks})
	}
	if len(groups) == 0 && len(l.groups) > 0 {
		return // they can no longer be opened: keep the old ones
	}
	for _, g := range l.groups {
		_, _ = g.limit.Close(), g.tasks.Close()
	}
	l.cgroup, l.groups = cgroup, groups
}

// directories returns the cgroups that count the tasks of a process, each with its ancestors,
// from /proc/PID/cgroup and /proc/PID/mountinfo (cgroups(7), proc_pid_mountinfo(5)).
func directories(cgroup, mountinfo string) (dirs []string) {
	paths := map[bool]string{} // key: cgroup version 2
	for line := range strings.Lines(cgroup) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(f) != 3:
		case f[0] == "0" && f[1] == "":
			paths[true] = f[2]
		case contains(f[1], "pids"):
			paths[false] = f[2]
		}
	}
	for line := range strings.Lines(mountinfo) {
		left, right, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(left), strings.Fields(right)
		if len(f) < 5 || len(kind) < 3 {
			continue
		}
		two := kind[0] == "cgroup2"
		path, ok := paths[two]
		if !ok || !two && (kind[0] != "cgroup" || !contains(kind[2], "pids")) {
			continue
		}
		root, mount := unescape(f[3]), unescape(f[4])
		if below, err := filepath.Rel(root, path); err == nil && below != ".." && !strings.HasPrefix(below, "../") {
			path = below
		}
		// If the path is not below the mount's root, the mount itself is the best guess.
		for dir := filepath.Join(mount, path); ; dir = filepath.Dir(dir) {
			dirs = append(dirs, dir)
			if len(dir) <= len(mount) {
				break
			}
		}
	}
	return dirs
}

func contains(list, name string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if part == name {
			return true
		}
	}
	return false
}

// unescape decodes the escapes of mountinfo: a backslash and three octal digits.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// number reads the number in a file of a cgroup. It returns false if there is none ("max").
func number(f *os.File) (int, bool) {
	var b [32]byte
	n, err := f.ReadAt(b[:], 0)
	if n == 0 && err != nil {
		return 0, false // the cgroup was removed, or is not readable
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return v, err == nil
}

// userRoom returns how many of the user's tasks (RLIMIT_NPROC) this process may use: half,
// minus those that it has. The number of the user's other tasks is not available; refused
// detects when there are too many.
func userRoom() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &r) != nil || r.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	has := own()
	if has >= int(r.Cur) {
		return math.MaxInt32 // the limit does not apply to this process: root, or CAP_SYS_RESOURCE
	}
	return max(int(r.Cur)/2-has, 0)
}

// own returns how many threads this process has.
func own() int {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), "Threads:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return 0
}

// refused reports whether the kernel would now refuse a new task, for any reason but a cgroup's
// limit: RLIMIT_NPROC if it applies to this process, threads-max, or pid_max. The clone cannot
// succeed: its pidfd would be written to an address that is never mapped. The kernel writes it
// after it has checked these limits and before the task can run (kernel/fork.c, copy_process).
func refused() bool {
	const nowhere = 1 // below vm.mmap_min_addr
	_, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_FS|unix.CLONE_FILES|unix.CLONE_SIGHAND|unix.CLONE_PIDFD, 0, nowhere, 0, 0, 0)
	return errors.Is(errno, unix.EAGAIN)
}

// keep creates up to n threads that exist at the same time, while more returns true before
// each. The runtime keeps and reuses them. keep returns how many it created.
func keep(n int, more func() bool) (made int) {
	var there, gone sync.WaitGroup
	release := make(chan struct{})
	for ; made < n && more(); made++ {
		there.Add(1)
		gone.Go(func() {
			runtime.LockOSThread() // so that each goroutine needs a thread of its own
			defer runtime.UnlockOSThread()
			there.Done()
			<-release
		})
		there.Wait()
	}
	close(release)
	gone.Wait()
	return made
}
