package tracing

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// For a fault that its process serves, the probe records when the process did so: by its
// madvise, or by its touch of the page.
func TestDelegates(t *testing.T) {
	for _, method := range []string{"touch", "populate"} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t)
			r.on()
			r.write("--dst", "absent", "--method", method, "--count", "200")
			c := r.exact()
			n := r.latencies(r.dir)
			// Only a sleeping thread must be woken, so not each fault has a wake-up. Some pages
			// are present before their own message is served.
			if 10*n["delegate_touch"] < 9*c["faults"] || n["delegate_answer"] != n["delegate_touch"] || n["delegate_run"] == 0 || n["wake_client"] == 0 {
				t.Errorf("of %d faults: %v", c["faults"], n)
			}
		})
	}
	t.Run("page fault", func(t *testing.T) {
		exe := cClient(t, "-include", "testdata/touch.h")
		r := newRig(t)
		r.ctl("trace", "on", "--bpffs", r.dir, "--sources", "touches")
		r.before = r.metrics()
		for _, s := range r.status().Sources {
			if s.Name == "touches" && !s.Attached {
				t.Skip(s.Reason)
			}
		}
		r.one(exe, "touch")
		c := r.exact()
		if n := r.latencies(r.dir); n["delegate_touch"] == 0 { // pages that are already present are not touched
			t.Errorf("of %d faults: %v", c["faults"], n)
		}
	})
}

// Faults during which another process ran on the processor of pfd's thread are marked.
func TestShared(t *testing.T) {
	first, second := processors(t)
	for _, tt := range []struct {
		name   string
		cpu    int
		shared bool
	}{{"together", first, true}, {"apart", second, false}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			pin(t, r.pfd.Process.Pid, first)
			r.on()
			writeOn(t, r, tt.cpu)
			c := r.exact()
			if (c["shared_faults"] > 0) != tt.shared {
				t.Errorf("%d faults of %d on a shared processor", c["shared_faults"], c["faults"])
			}
		})
	}
}

// writeOn runs test processes that write on one processor only.
func writeOn(t *testing.T, r *rig, cpu int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil { // children inherit it
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Error(err)
		}
	}()
	r.write("--dst", "absent", "--waiting", "wait", "--count", "200")
}
