package guests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/trace/probe"
)

// makePackage builds the package that Debian guests install, beside the programs. It is
// reproducible, so that a guest of the same files need not boot again.
func makePackage(t *testing.T) {
	t.Helper()
	began := time.Now()
	// Another test (internal/packaging) builds it in the same directory, too.
	cmd := exec.CommandContext(t.Context(), "flock", "Makefile", "make", "deb")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "DEB_DIR="+bin, "VERSION=1.2.3~test", "SOURCE_DATE_EPOCH=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		unavailable(t, fmt.Errorf("make deb: %w: %s", err, out))
	}
	t.Logf("make deb: %.1f s", time.Since(began).Seconds())
}

// service is the pfd that a guest's systemd runs.
type service struct {
	t *testing.T
	*fleet
}

// show returns a property of the service.
func (s service) show(property string) string {
	s.t.Helper()
	return strings.TrimSpace(s.run(0, "systemctl", "show", "pfd", "--value", "--property", property))
}

func (s service) journal() string {
	s.t.Helper()
	return s.run(0, "journalctl", "--no-pager", "--unit", "pfd", "--output", "short-monotonic")
}

// writes makes a user without rights write into absent memory through the device.
func (s service) writes() {
	s.t.Helper()
	var r struct {
		Verified bool
		Faults   uint64
	}
	out := s.run(0, "setpriv", "--reuid=4001", "--regid=4001", "--clear-groups", "exanetctl", "-j", "write", "--dst", "absent", "--size", "64KiB")
	if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Verified || r.Faults == 0 {
		s.t.Errorf("a write of the user: %v: %s", err, out)
	}
}

// drives checks that the service's process has a VFIO device open.
func (s service) drives() {
	s.t.Helper()
	if fds := s.run(0, "sh", "-c", "ls -l /proc/"+s.show("MainPID")+"/fd"); strings.Count(fds, "vfio-device") != 2 {
		s.t.Errorf("pfd does not have its two devices open:\n%s", fds)
	}
}

// restarted waits until systemd notices that its pfd has ended and starts another one.
func (s service) restarted(signal string) {
	s.t.Helper()
	old := s.show("MainPID")
	s.run(0, "kill", "-"+signal, old)
	until(s.t, "pfd is started again after "+signal, func() bool {
		out := s.run(0, "systemctl", "show", "pfd", "--property", "ActiveState", "--property", "MainPID")
		return strings.Contains(out, "ActiveState=active\n") && !strings.Contains(out, "MainPID="+old+"\n") && !strings.Contains(out, "MainPID=0\n")
	})
	s.drives()
	s.writes()
}

// Debian with systemd and pfd installed from its package. The service drives nodes through the
// kernel's VFIO as a user without rights, under the watchdog of systemd.
func TestDebian(t *testing.T) {
	usable(t)
	makePackage(t)
	f := boot(t, qemu.Options{Guests: 1, Nodes: 2, System: qemu.Debian, PFD: slow})
	s := service{t, f}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := f.try(0, "journalctl", "--no-pager")
			t.Log(out)
		}
	})
	t.Log(strings.TrimSpace(f.run(0, "sh", "-c", "grep PRETTY /etc/os-release; uname -r; systemctl --version | head -1; dpkg-query --show exanet")))

	status := f.run(0, "systemctl", "status", "--no-pager", "pfd")
	for _, want := range []string{"active (running)", "Status: \"2 nodes", "/usr/sbin/pfd --config /etc/exanet/pfd.toml --sandbox=strict"} {
		if !strings.Contains(status, want) {
			t.Errorf("systemctl status has no %q:\n%s", want, status)
		}
	}
	if j := s.journal(); !strings.Contains(j, "msg=ready nodes=2 device=vfio:0000:") || strings.Contains(j, "a step is not taken") {
		t.Errorf("the journal does not report a pfd ready in its sandbox:\n%s", j)
	}
	var entry struct{ MESSAGE, NODES, DEVICE, PRIORITY string }
	if out := f.run(0, "journalctl", "--no-pager", "--unit", "pfd", "--output", "json", "NODES=2"); json.Unmarshal([]byte(strings.SplitN(out, "\n", 2)[0]), &entry) != nil ||
		entry.PRIORITY != "6" || !strings.HasPrefix(entry.DEVICE, "vfio:0000:") || !strings.HasPrefix(entry.MESSAGE, "msg=ready ") {
		t.Errorf("the journal's fields of the ready line are %+v:\n%s", entry, out)
	}
	process := f.run(0, "cat", "/proc/"+s.show("MainPID")+"/status")
	for _, line := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t" + strings.TrimSpace(f.run(0, "id", "-u", "exanet")) + "\t"} {
		if !strings.Contains(process, line) {
			t.Errorf("pfd's status has no %q:\n%s", line, process)
		}
	}
	s.drives()
	s.writes()

	security := f.run(0, "systemd-analyze", "security", "--no-pager", "pfd.service")
	level := regexp.MustCompile(`Overall exposure level for pfd.service: ([0-9.]+)`).FindStringSubmatch(security)
	if level == nil {
		t.Fatalf("output of systemd-analyze security:\n%s", security)
	}
	if v, err := strconv.ParseFloat(level[1], 64); err != nil || v > 3.0 {
		t.Errorf("exposure level %s, want at most 3.0:\n%s", level[1], security)
	}
	t.Log(level[0])

	// Shorten only the watchdog's time.
	f.run(0, "sh", "-c", "mkdir -p /run/systemd/system/pfd.service.d; printf '[Service]\\nWatchdogSec=10s\\n' >/run/systemd/system/pfd.service.d/test.conf; systemctl daemon-reload; systemctl restart pfd")
	s.restarted("STOP")
	if j := s.journal(); !strings.Contains(j, "Watchdog timeout") {
		t.Errorf("the journal does not report the watchdog:\n%s", j)
	}
	f.run(0, "systemctl", "reset-failed", "pfd") // the restarts of this test are not a crash loop
	s.restarted("KILL")
	if j := s.journal(); !strings.Contains(j, "status=9/KILL") {
		t.Errorf("the journal does not report SIGKILL:\n%s", j)
	}

	t.Run("trace", func(t *testing.T) { traced(t, service{t, &fleet{t, f.Fleet}}) })
	t.Run("pfd traces itself", func(t *testing.T) { tracesItself(t, service{t, &fleet{t, f.Fleet}}) })
}

// tracesItself makes the service trace itself, by the drop-in of contrib. Its pfd has two
// capabilities until it enters its sandbox, and none afterwards.
func tracesItself(t *testing.T, s service) {
	s.run(0, "sh", "-c", `sed 's/^#SystemCallFilter=/SystemCallFilter=/' /usr/share/exanet/systemd/trace.conf >/run/systemd/system/pfd.service.d/trace.conf
echo 'trace = "/sys/fs/bpf/exanet"' >>/etc/exanet/pfd.toml; systemctl daemon-reload; systemctl restart pfd`)
	s.drives()
	s.writes()
	if process := s.run(0, "cat", "/proc/"+s.show("MainPID")+"/status"); !strings.Contains(process, "CapEff:\t0000000000000000") {
		t.Errorf("pfd keeps capabilities:\n%s", process)
	}
	// It may not pin programs; it keeps the maps and answers queries.
	j := s.journal()
	if _, j, _ = strings.Cut(j, "trace: nothing is pinned"); j == "" || strings.Contains(j, "a step is not taken") {
		t.Errorf("the journal:\n%s", s.journal())
	}
	s.attached()
	if latency := s.run(0, "exanetctl", "trace", "latency"); !strings.Contains(latency, "page_in") {
		t.Errorf("the table of latencies is\n%s", latency)
	}
}

// attached checks that the probe has all sources and has counted a fault of the service.
func (s service) attached() (status probe.Status) {
	s.t.Helper()
	s.answer(0, &status, "trace", "status")
	for _, source := range status.Sources {
		if !source.Attached {
			s.t.Errorf("source %s is not attached: %s", source.Name, source.Reason)
		}
	}
	if len(status.Sources) < 7 {
		s.t.Errorf("sources %+v", status.Sources)
	}
	// The device, in another process, has the sender's half of a fault: no halves are joined.
	for _, name := range []string{"records", "faults", "page_ins", "pages", "rapfs"} {
		if status.Counters[name] == 0 {
			s.t.Errorf("the probe has counted no %s: %v", name, status.Counters)
		}
	}
	return status
}

// traced checks that the eBPF probe sees a fault of the service with all its sources attached,
// and that Debian's bpftool can read it.
func traced(t *testing.T, s service) {
	s.run(0, "exanetctl", "trace", "on")
	s.writes()
	status := s.attached()
	for _, name := range []string{"fault_latency", "fault_counters", "fault_sources", "fault_pfds"} {
		var entries []any
		out := s.run(0, "bpftool", "-j", "map", "dump", "pinned", "/sys/fs/bpf/exanet/"+name)
		if err := json.Unmarshal([]byte(out), &entries); err != nil || len(entries) == 0 {
			t.Errorf("bpftool of %s: %v: %s", name, err, out)
		}
	}
	if table := s.run(0, "cat", "/sys/fs/bpf/exanet/latency"); !strings.Contains(table, "wake_pfd") {
		t.Errorf("the table of latencies is\n%s", table)
	}
	s.run(0, "exanetctl", "trace", "off")
	t.Logf("%s; %d sources; %v", strings.TrimSpace(s.run(0, "sh", "-c", "bpftool version | head -1")), len(status.Sources), status.Counters)
}
