package tracing

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/trace/probe"
)

// latencies queries by exanetctl, which reads the maps or asks pfd.
func (r *rig) latencies(dir string) map[string]uint64 {
	r.t.Helper()
	var answer struct {
		Latency []probe.Latency `json:"latency"`
	}
	if err := json.Unmarshal([]byte(r.ctl("trace", "latency", "-j", "--bpffs", dir)), &answer); err != nil {
		r.t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, l := range answer.Latency {
		counts[l.Stage] += l.Count
	}
	return counts
}

// pfd --trace is traced from its first fault until it ends; tracing that exanetctl has started
// continues.
func TestTracesItself(t *testing.T) {
	if refused != "" {
		t.Skip(refused)
	}
	dir := filepath.Join(bpffs, t.Name())
	t.Cleanup(func() { _ = probe.Off(dir) })
	var r *rig
	end := func() {
		_ = r.pfd.Process.Signal(unix.SIGTERM)
		_ = r.pfd.Wait()
	}
	for _, sandbox := range []string{"auto", "strict", "off"} {
		if args := []string{"--trace=" + dir, "--sandbox", sandbox}; r == nil {
			r = newRig(t, args...)
			r.dir = dir
		} else {
			r.start(args...)
		}
		r.write("--dst", "absent", "--count", "20")
		r.until("the faults are seen", func() bool { return r.status().Counters["faults"] == 20 })
		if got := r.latencies(dir)["page_in"]; got != 20 {
			t.Errorf("%d page-ins", got)
		}
		if end(); probe.Off(dir) == nil {
			t.Errorf("sandbox %s: tracing outlives its pfd", sandbox)
		}
	}
	// Tracing that another process has started meanwhile, or before.
	r.start("--trace=" + dir)
	r.ctl("trace", "off", "--bpffs", dir)
	r.ctl("trace", "on", "--bpffs", dir)
	end()
	r.start("--trace=" + dir)
	end()
	if err := probe.Off(dir); err != nil {
		t.Errorf("tracing that exanetctl has started: %v", err)
	}
}

// Without a bpffs pfd keeps the maps itself, and exanetctl asks pfd. A pfd without maps reports
// a remedy. Nothing is left when it ends.
func TestKeepsItsMaps(t *testing.T) {
	if refused != "" {
		t.Skip(refused)
	}
	// A directory outside a bpffs, where none can be mounted: its parent is a file.
	none := filepath.Join(t.TempDir(), "file", "exanet")
	if err := os.WriteFile(filepath.Dir(none), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	off := filepath.Join(bpffs, "nothing")
	for _, sandbox := range []string{"auto", "strict", "off"} {
		r := newRig(t, "--trace="+none, "--sandbox", sandbox)
		r.write("--dst", "absent", "--count", "20")
		r.until("the faults are seen", func() bool { return r.latencies(off)["total"] == 20 })
		var s probe.Status
		if err := json.Unmarshal([]byte(r.ctl("trace", "status", "-j", "--bpffs", off)), &s); err != nil {
			t.Fatal(err)
		}
		if s.Counters["faults"] != 20 || len(s.Programs) != 1 || !strings.HasSuffix(s.Programs[0].File, "/pfd") {
			t.Errorf("%s: %+v", sandbox, s)
		}
		_ = r.pfd.Process.Signal(unix.SIGTERM)
		_ = r.pfd.Wait()
	}
	r := newRig(t)
	if out, err := r.try("trace", "latency", "--bpffs", off); err == nil || !strings.Contains(err.Error(), "trace on") {
		t.Errorf("%v %s", err, out)
	}
}
