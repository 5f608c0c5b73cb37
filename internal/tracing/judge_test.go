package tracing

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

const (
	// asTarget says that this process is the target of a judge's test: what troubles it.
	asTarget = "EXANET_TRACING_TARGET"
	// judged is how many pages are faulted in.
	judged = 1500
	// smallGroup is the limit of the small cgroup, bytes.
	smallGroup = 48 << 20
)

// serveTarget is a target: it names a buffer that nobody has touched, and lives until
// its input ends.
func serveTarget(trouble string) error {
	debug.SetGCPercent(-1) // else the runtime takes the mmap_lock now and then
	args := strings.Fields(os.Getenv(asTarget + "_ARGS"))
	e, err := rdma.Attach(context.Background(), rdma.Options{Socket: args[0], Node: 1, Group: "judge", AcceptGroup: true})
	if err != nil {
		return err
	}
	defer e.Close()
	b, err := unix.Mmap(-1, 0, judged*device.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	remote, err := e.Export(b)
	if err != nil {
		return err
	}
	switch trouble {
	case "locks":
		for range 2 {
			go remap()
		}
	case "reclaim":
		go reread(args[1])
	}
	fmt.Println(remote)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// remap maps and unmaps a populated area for ever: it is unmapped under the mmap_lock.
func remap() {
	const size = 8 << 20
	var at uintptr
	for flags := uintptr(unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE); ; flags |= unix.MAP_FIXED {
		a, _, errno := unix.Syscall6(unix.SYS_MMAP, at, size, unix.PROT_READ|unix.PROT_WRITE, flags, ^uintptr(0), 0)
		if errno != 0 {
			fmt.Fprintln(os.Stderr, "mmap:", errno)
			return
		}
		at = a
	}
}

// reread reads a file that is larger than its cgroup may be for ever.
func reread(name string) {
	b := make([]byte, 1<<20)
	for {
		f, err := os.Open(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		for {
			if _, err := f.Read(b); err != nil {
				break
			}
		}
		f.Close()
	}
}

// spent is what the faults of a run took in all, ns, by stage; the counts of faults.
type spent map[string]uint64

// judge has pages of a target in trouble faulted in, and gives what the probe says. All
// of it but the trouble runs on the first processor.
func (r *rig) judge(trouble string, args ...string) spent {
	t := r.t
	t.Helper()
	first, second := processors(t)
	r.ctl("trace", "on", "--bpffs", r.dir)
	defer r.ctl("trace", "off", "--bpffs", r.dir)
	r.before = r.metrics()

	target := exec.Command("/proc/self/exe")
	target.Env = append(os.Environ(), asTarget+"="+trouble, asTarget+"_ARGS="+r.socket+" "+strings.Join(args, " "))
	target.Stderr = os.Stderr
	in, err := target.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := target.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := target.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if trouble == "reclaim" {
		confine(t, target.Process.Pid)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	remote, err := rdma.ParseRemote(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	pin(t, target.Process.Pid, second)
	pin(t, r.pfd.Process.Pid, first)
	if trouble == "hog" {
		hog := exec.Command("sh", "-c", "while :; do :; done")
		if err := hog.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = hog.Process.Kill()
			_ = hog.Wait()
		}()
		urgent(t, hog.Process.Pid)
		pin(t, hog.Process.Pid, first)
	}

	e, err := rdma.Attach(t.Context(), rdma.Options{Socket: r.socket, Group: "judge", AcceptGroup: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	page := make([]byte, device.PageSize)
	for i := range uint64(judged) {
		x, err := e.Write(t.Context(), rdma.WriteRequest{Src: page, Dst: remote, Offset: i * device.PageSize})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// A block that waits for long is sent again by its time-out, and the request for it is
	// of no refusal then: only the faults are waited for.
	want := r.since("exanet_faults_total") - r.since("exanet_faults_duplicate_total")
	r.until("the faults are shown", func() bool { return r.status().Counters["faults"] >= want })
	m := r.maps()
	defer m.Close()
	list, err := m.Latencies()
	if err != nil {
		t.Fatal(err)
	}
	s := spent{}
	for _, l := range list {
		s[l.Stage] += l.SumNS
		if l.Stage == "total" {
			s["faults"] += l.Count
		}
	}
	t.Logf("%s: %d faults, %v in all: lock_wait %v, lock_other %v, reclaim %v, preempted %v", trouble, s["faults"], time.Duration(s["total"]),
		time.Duration(s["lock_wait"]), time.Duration(s["lock_other"]), time.Duration(s["reclaim"]), time.Duration(s["preempted"]))
	return s
}

// processors gives two of those that this process may use.
func processors(t *testing.T) (int, int) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	var list []int
	for i := 0; len(list) < 2 && i < 1024; i++ {
		if all.IsSet(i) {
			list = append(list, i)
		}
	}
	if len(list) < 2 {
		t.Skip("one processor: what troubles the target cannot be kept off pfd's")
	}
	return list[0], list[1]
}

// pin keeps all threads of a process on one processor.
func pin(t *testing.T, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	threads(t, pid, func(tid int) error { return unix.SchedSetaffinity(tid, &set) })
}

// urgent has a process's threads go before all that others run meanwhile.
func urgent(t *testing.T, pid int) {
	t.Helper()
	threads(t, pid, func(tid int) error { return unix.Setpriority(unix.PRIO_PROCESS, tid, -20) })
}

func threads(t *testing.T, pid int, f func(tid int) error) {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		tid, err := strconv.Atoi(e.Name())
		if err == nil {
			err = f(tid)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // a thread that has ended
			t.Fatal(err)
		}
	}
}

// confine moves a process into a cgroup that may have little memory.
func confine(t *testing.T, pid int) {
	t.Helper()
	parent, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		parent, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	dir := filepath.Join(parent, fmt.Sprintf("exanet-tracing-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no cgroup with little memory can be made: %v", err)
	}
	t.Cleanup(func() {
		r := rig{t: t}
		r.until("the cgroup is empty", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(smallGroup)), 0o644); err != nil {
		t.Skipf("no cgroup with little memory can be made: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A target whose threads hold its mmap_lock, one whose cgroup has no memory left, and
// somebody else on pfd's processor: each shows up in its own stage and in no other.
func TestJudges(t *testing.T) {
	r := newRig(t)
	urgent(t, r.pfd.Process.Pid)
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 4*smallGroup); err != nil {
		t.Fatal(err)
	}
	plain := r.judge("plain")
	locks, reclaim, hog := r.judge("locks"), r.judge("reclaim", large), r.judge("hog")
	for name, s := range map[string]spent{"plain": plain, "locks": locks, "reclaim": reclaim, "hog": hog} {
		if (s["lock_wait"] != 0) != (name == "locks") {
			t.Errorf("%s: waited %d ns for the mmap_lock", name, s["lock_wait"])
		}
		if (s["reclaim"] != 0) != (name == "reclaim") {
			t.Errorf("%s: %d ns of reclaim", name, s["reclaim"])
		}
		// Others may be on the processor at any time, but not for so long.
		if name != "hog" && 2*s["preempted"] > hog["preempted"] {
			t.Errorf("%s: preempted for %d ns, with somebody else there %d ns", name, s["preempted"], hog["preempted"])
		}
	}
	if hog["preempted"] == 0 {
		t.Error("somebody else on pfd's processor is not seen")
	}
}
