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
	"runtime"
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
	// asTarget makes this process the target of a judge's test; the value is its trouble.
	asTarget = "EXANET_TRACING_TARGET"
	// judged is the number of faulting pages.
	judged = 1500
	// smallGroup is the limit of the small cgroup in bytes.
	smallGroup = 48 << 20
)

// hog repeatedly takes the processor from other threads.
func hog() error {
	runtime.LockOSThread()
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("a real-time thread: %w", err)
	}
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		for end := time.Now().Add(300 * time.Microsecond); time.Now().Before(end); {
		}
		rest := unix.NsecToTimespec(int64(100 * time.Microsecond))
		_ = unix.Nanosleep(&rest, nil)
	}
}

// serveTarget is a target: it prints the address of an untouched buffer, and lives until its
// input ends.
func serveTarget(trouble string) error {
	if trouble == "take" {
		return hog()
	}
	debug.SetGCPercent(-1) // garbage collection would take the mmap_lock
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
	underWay := make(chan struct{})
	switch trouble {
	case "locks":
		go remap(underWay)
		<-underWay
	case "reclaim":
		// The page cache of a file that is larger than the cgroup's limit.
		if _, err := copyFile(io.Discard, args[1]); err != nil {
			return err
		}
	}
	fmt.Println(remote)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// remap repeatedly maps and unmaps a populated area; munmap holds the mmap_lock.
func remap(underWay chan struct{}) {
	const size = 8 << 20
	var at uintptr
	for flags := uintptr(unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_POPULATE); ; flags |= unix.MAP_FIXED {
		a, _, errno := unix.Syscall6(unix.SYS_MMAP, at, size, unix.PROT_READ|unix.PROT_WRITE, flags, ^uintptr(0), 0)
		if errno != 0 {
			fmt.Fprintln(os.Stderr, "mmap:", errno)
			return
		}
		if at == 0 {
			close(underWay)
		}
		at = a
	}
}

func copyFile(w io.Writer, name string) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(w, f)
}

// rounds is the maximum number of rounds for a trouble. A round can miss its trouble if other
// processes preempt the process that causes it.
const rounds = 40

// judgeUntil repeats judge until done returns true, and returns the last round.
func (r *rig) judgeUntil(done func(s spent) bool, trouble string, args ...string) (s spent) {
	for range rounds {
		if s = r.judge(trouble, args...); done(s) {
			break
		}
	}
	return s
}

// preferred are the settings of a cgroup whose processes are rarely preempted.
var preferred = map[string]string{"cpu.weight": "10000", "cpu.shares": "262144"}

// spent is the total time of a run's faults in ns by stage, and the counts of faults.
type spent map[string]uint64

// preempted returns for which part of the stages from doorbell seen to done published pfd's
// thread was preempted.
func (s spent) preempted() float64 {
	return float64(s["preempted"]) / float64(s["total"]-s["ring"]-s["seen"])
}

// judge faults in pages of a troubled target and returns the probe's results. All but the
// trouble runs on the first processor.
func (r *rig) judge(trouble string, args ...string) spent {
	t := r.t
	t.Helper()
	first, second := processors(t)
	r.ctl("trace", "on", "--bpffs", r.dir)
	defer r.ctl("trace", "off", "--bpffs", r.dir)
	r.before = r.metrics()

	target, named := r.beside(trouble, args...)
	defer target.end(t)
	switch trouble {
	case "reclaim":
		limit := strconv.Itoa(smallGroup)
		group(t, target.cmd.Process.Pid, "memory", map[string]string{"memory.max": limit, "memory.limit_in_bytes": limit})
	case "locks": // it holds the lock only while it runs
		group(t, target.cmd.Process.Pid, "cpu", preferred)
	}
	line := named()
	remote, err := rdma.ParseRemote(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	pin(t, target.cmd.Process.Pid, second)
	pin(t, r.pfd.Process.Pid, first)
	if trouble == "hog" {
		hog, ready := r.beside("take")
		defer hog.end(t)
		ready()
		pin(t, hog.cmd.Process.Pid, first)
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
	// A block that waits for long is retransmitted by its time-out, and its request is then
	// attributed to no refusal: wait only for the faults.
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
	t.Logf("%s: %d faults, %v in all: lock_wait %v, lock_other %v, reclaim %v, preempted %v (%.3f)", trouble, s["faults"], time.Duration(s["total"]),
		time.Duration(s["lock_wait"]), time.Duration(s["lock_other"]), time.Duration(s["reclaim"]), time.Duration(s["preempted"]), s.preempted())
	return s
}

// beside is a process of the test that runs beside pfd.
type beside struct {
	cmd *exec.Cmd
	in  io.Closer
}

// beside starts a process that runs serveTarget or hog; line returns its first line of output.
func (r *rig) beside(trouble string, args ...string) (b beside, line func() string) {
	t := r.t
	t.Helper()
	b.cmd = exec.Command("/proc/self/exe")
	b.cmd.Env = append(os.Environ(), asTarget+"="+trouble, asTarget+"_ARGS="+r.socket+" "+strings.Join(args, " "))
	b.cmd.Stderr = os.Stderr
	in, err := b.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.in = in
	return b, func() string {
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("%s prints nothing: %v", trouble, err)
		}
		return line
	}
}

func (b beside) end(t *testing.T) {
	b.in.Close()
	if err := b.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// processors returns two of the processors that this process may use.
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
		t.Skip("one processor: the target's trouble would run on pfd's processor")
	}
	return list[0], list[1]
}

// pin binds all threads of a process to one processor.
func pin(t *testing.T, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	threads(t, pid, func(tid int) error { return unix.SchedSetaffinity(tid, &set) })
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
		if err != nil && !errors.Is(err, unix.ESRCH) { // the thread has ended
			t.Fatal(err)
		}
	}
}

// group moves a process into its own cgroup and applies those of the settings that exist:
// versions 1 and 2 of cgroups have different names.
func group(t *testing.T, pid int, controller string, settings map[string]string) {
	t.Helper()
	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(parent, "cgroup.controllers")); err != nil {
		parent = filepath.Join(parent, controller)
	}
	dir := filepath.Join(parent, fmt.Sprintf("exanet-tracing-%d", pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no cgroup can be made: %v", err)
	}
	t.Cleanup(func() {
		r := rig{t: t}
		r.until("the cgroup is empty", func() bool {
			// A living process moves back; ESRCH: it has ended.
			_ = os.WriteFile(filepath.Join(parent, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
			return os.Remove(dir) == nil
		})
	})
	set := false
	for name, v := range settings {
		set = os.WriteFile(filepath.Join(dir, name), []byte(v), 0o644) == nil || set
	}
	if !set {
		t.Skipf("the cgroup %s has none of %v: is its controller %s enabled?", dir, settings, controller)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A target whose threads hold its mmap_lock, a target whose cgroup has no memory left, and
// another process on pfd's processor: each shows up in its own stage, and the first two in no
// other. How long pfd is preempted depends on the load of the machine: that is compared only
// with PFD_SOAK=1, on a quiet machine.
func TestJudges(t *testing.T) {
	r := newRig(t)
	soak := os.Getenv("PFD_SOAK") != ""
	if !soak {
		t.Log("the preempted time is compared only with PFD_SOAK=1 (make soak): it needs a quiet machine")
	}
	// Other processes of the machine rarely preempt pfd.
	group(t, r.pfd.Process.Pid, "cpu", preferred)
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 4*smallGroup); err != nil {
		t.Fatal(err)
	}
	hog := r.judgeUntil(func(s spent) bool { return s["preempted"] != 0 }, "hog")
	if hog["preempted"] == 0 {
		t.Error("another process on pfd's processor is not detected")
	}
	for _, x := range []struct {
		name, stage string // the stage in which it shows up; none: in neither
		args        []string
	}{{"plain", "", nil}, {"locks", "lock_wait", nil}, {"reclaim", "reclaim", []string{large}}} {
		quiet := func(s spent) bool { return 2*s.preempted() <= hog.preempted() }
		s := r.judgeUntil(func(s spent) bool {
			return (x.stage == "" || s[x.stage] != 0) && (!soak || quiet(s))
		}, x.name, x.args...)
		for _, stage := range []string{"lock_wait", "reclaim"} {
			if (s[stage] != 0) != (stage == x.stage) {
				t.Errorf("%s: %d ns of %s", x.name, s[stage], stage)
			}
		}
		if soak && !quiet(s) {
			t.Errorf("%s: preempted for %.3f of the time, beside another process %.3f", x.name, s.preempted(), hog.preempted())
		}
	}
}
