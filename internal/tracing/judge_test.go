package tracing

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// pin keeps all threads of a process on one processor.
func pin(t *testing.T, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			t.Fatal(err)
		}
	}
}

// Somebody else on pfd's processor shows up as preempted, and the more so.
func TestHogIsSeen(t *testing.T) {
	r := newRig(t)
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	preempted := func() (ns uint64) {
		t.Helper()
		m := r.maps()
		defer m.Close()
		list, err := m.Latencies()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			if l.Stage == "preempted" {
				ns += l.SumNS
			}
		}
		return ns
	}
	// Blocks time out here, and a request for one of an older number is of no refusal:
	// only the faults are waited for.
	shown := func() {
		t.Helper()
		want := r.since("exanet_faults_total") - r.since("exanet_faults_duplicate_total")
		r.until("the faults are shown", func() bool { return r.status().Counters["faults"] >= want })
	}
	pin(t, r.pfd.Process.Pid, cpu)
	r.on()
	r.write("--dst", "absent", "--size", "1MiB", "--count", "60")
	shown()
	before := preempted()
	hog := exec.Command("sh", "-c", "while :; do :; done")
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = hog.Process.Kill()
		_ = hog.Wait()
	}()
	pin(t, hog.Process.Pid, cpu)
	r.write("--dst", "absent", "--size", "1MiB", "--count", "60")
	shown()
	after := preempted() - before
	t.Logf("preempted: %d ns without, %d ns with somebody else there", before, after)
	if after <= before {
		t.Errorf("faults were preempted for %d ns with somebody else on the processor, %d ns without", after, before)
	}
}
