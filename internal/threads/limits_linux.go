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

// limits are what bounds the tasks of this process: the pids controller in its cgroup and
// those above it, which may be moved and changed at any time, and RLIMIT_NPROC.
type limits struct {
	cgroup []byte // /proc/self/cgroup, as it was when files were opened
	groups []group
}

// group is a cgroup that has a limit of tasks.
type group struct{ limit, tasks *os.File } // pids.max, pids.current

// room returns how many more tasks can be made, as far as can be seen.
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

// open opens the files of all cgroups of this process that can be seen. They stay open:
// a sandbox may keep the process from opening them later.
func (l *limits) open(cgroup []byte) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	var groups []group
	for _, dir := range directories(string(cgroup), string(mounts)) {
		limit, err := os.Open(filepath.Join(dir, "pids.max"))
		if err != nil {
			continue // the root has none
		}
		tasks, err := os.Open(filepath.Join(dir, "pids.current"))
		if err != nil {
			_ = limit.Close()
			continue
		}
		groups = append(groups, group{limit, tasks})
	}
	if len(groups) == 0 && len(l.groups) > 0 {
		return // they cannot be opened any more: the former ones say more than none
	}
	for _, g := range l.groups {
		_, _ = g.limit.Close(), g.tasks.Close()
	}
	l.cgroup, l.groups = cgroup, groups
}

// directories lists the cgroups of a process that count its tasks, each with those above
// it, from /proc/PID/cgroup and /proc/PID/mountinfo (cgroups(7), proc_pid_mountinfo(5)).
func directories(cgroup, mountinfo string) (dirs []string) {
	paths := map[bool]string{} // by whether it is version 2
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
		// Where the path is none of the mount's, the mount itself is the best that is known.
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

// unescape takes the escapes of mountinfo away: a backslash and three octal digits.
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

// number reads the number in a file of a cgroup. False: there is none ("max").
func number(f *os.File) (int, bool) {
	var b [32]byte
	n, err := f.ReadAt(b[:], 0)
	if n == 0 && err != nil {
		return 0, false // the cgroup is gone, or may not be read
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return v, err == nil
}

// userRoom returns how many tasks this process may have of the user's, by RLIMIT_NPROC:
// half of them, less those that it has. How many others the user has nothing tells;
// refused does when they are too many.
func userRoom() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &r) != nil || r.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	has := own()
	if has >= int(r.Cur) {
		return math.MaxInt32 // it does not count for this process: root, or CAP_SYS_RESOURCE
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

// refused reports whether the kernel would make no task now, for any reason but a
// cgroup's limit: RLIMIT_NPROC, where it counts for this process, threads-max, or pid_max.
// The clone cannot succeed: its pidfd is to be written where nothing is ever mapped, and
// the kernel writes it after it has looked at these limits and before the task can run
// (kernel/fork.c, copy_process).
func refused() bool {
	const nowhere = 1 // below vm.mmap_min_addr
	_, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VM|unix.CLONE_FS|unix.CLONE_FILES|unix.CLONE_SIGHAND|unix.CLONE_PIDFD, 0, nowhere, 0, 0, 0)
	return errors.Is(errno, unix.EAGAIN)
}

// keep makes up to n threads at the same time, as long as more is true before each, and
// leaves them to the runtime, which uses them again. It returns how many it made.
func keep(n int, more func() bool) (made int) {
	var there, gone sync.WaitGroup
	release := make(chan struct{})
	for ; made < n && more(); made++ {
		there.Add(1)
		gone.Go(func() {
			runtime.LockOSThread() // this thread and no other
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
