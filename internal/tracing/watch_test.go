package tracing

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/trace/probe"
)

// said collects the output of a running command.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// follows runs an exanetctl until end is called.
func (r *rig) follows(args ...string) (out *said, end func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	out = new(said)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "exanetctl"), append([]string{"--socket", r.socket}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGINT) }
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	return out, func() {
		cancel()
		_ = cmd.Wait()
	}
}

// latency --watch continues, and shows new faults.
func TestLatencyWatch(t *testing.T) {
	r := newRig(t)
	r.on()
	out, end := r.follows("trace", "latency", "-j", "--watch=100ms", "--bpffs", r.dir)
	defer end()
	r.write("--dst", "absent", "--count", "20")
	r.exact()
	r.until("the faults are shown", func() bool {
		for line := range strings.Lines(out.String()) {
			var v struct {
				Latency []probe.Latency `json:"latency"`
			}
			if json.Unmarshal([]byte(line), &v) != nil {
				continue // an incomplete line
			}
			for _, l := range v.Latency {
				if l.Stage == "total" && l.Count == 20 {
					return true
				}
			}
		}
		return false
	})
}

// Filters apply before an event leaves the kernel.
func TestFilters(t *testing.T) {
	r := newRig(t)
	r.on()
	for _, tt := range []struct {
		args []string
		want func(probe.Event) bool
		// wanted causes matching faults, others causes other faults.
		wanted, others []string
	}{
		{[]string{"--node", "0"}, func(e probe.Event) bool { return e.Node == 0 }, []string{"--src", "absent"}, []string{"--dst", "absent"}},
		{[]string{"--node", "1"}, func(e probe.Event) bool { return e.Node == 1 }, []string{"--dst", "absent"}, []string{"--src", "absent"}},
		{[]string{"--kind", "none"}, func(e probe.Event) bool { return e.Kind == "none" }, []string{"--dst", "absent", "--method", "touch"}, []string{"--dst", "absent"}},
		{[]string{"--slower", "1us"}, func(e probe.Event) bool { return e.TotalNS >= 1000 }, []string{"--dst", "absent"}, nil},
	} {
		out, end := r.follows(append([]string{"trace", "faults", "-j", "--bpffs", r.dir}, tt.args...)...)
		r.until("the reader has started", func() bool { return r.status().Reader != 0 })
		if tt.others != nil {
			r.write(append(tt.others, "--count", "20")...)
		}
		r.write(append(tt.wanted, "--count", "20")...)
		r.until("the matching faults arrive", func() bool { return strings.Count(out.String(), "\n") >= 20 })
		end()
		for line := range strings.Lines(out.String()) {
			var e probe.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if !tt.want(e) {
				t.Errorf("%v: %+v", tt.args, e)
			}
		}
	}
	// No fault takes an hour.
	out, end := r.follows("trace", "faults", "-j", "--slower", "1h", "--bpffs", r.dir)
	r.until("the reader has started", func() bool { return r.status().Reader != 0 })
	r.write("--dst", "absent", "--count", "20")
	r.exact()
	end()
	if out.String() != "" {
		t.Errorf("%s", out)
	}
}
