package packaging

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// show returns a property of the service.
func (m *machine) show(property string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "pfd", "--value", "-p", property))
}

// install installs the package without running the triggers of other packages: indexing all
// manual pages would take longer than everything else.
func (m *machine) install() {
	m.t.Helper()
	m.run("dpkg", "--no-triggers", "--install", "/root/exanet.deb")
}

// transfers makes the user and root write into absent memory, with each byte checked. The
// kernel lets pfd access the memory of neither.
func (m *machine) transfers(args ...string) {
	m.t.Helper()
	write := append([]string{"exanetctl", "write", "--size", "64KiB", "--count", "20", "--dst", "absent"}, args...)
	for who, command := range map[string][]string{"the user": asUser(write...), "root": write} {
		out := m.run(command...)
		if !strings.Contains(out, "20, 0 failed") || !strings.Contains(out, "every byte is right") {
			m.t.Errorf("transfers of %s %v:\n%s", who, args, out)
		}
	}
}

// status reads a line of the daemon's /proc/PID/status.
func (m *machine) status(key string) string {
	m.t.Helper()
	text := m.run("cat", "/proc/"+m.show("MainPID")+"/status")
	_, rest, _ := strings.Cut(text, key+":")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func (m *machine) journal() string {
	m.t.Helper()
	return m.run("journalctl", "--no-pager", "--output=short-monotonic")
}

// restarted waits until systemd has replaced the pfd.
func (m *machine) restarted(old, why string) {
	m.t.Helper()
	m.until("pfd is started again after "+why, func() bool {
		// Read both at once: the process may end in between.
		out := m.run("systemctl", "show", "pfd", "-p", "ActiveState", "-p", "MainPID")
		return strings.Contains(out, "ActiveState=active\n") &&
			!strings.Contains(out, "MainPID="+old+"\n") && !strings.Contains(out, "MainPID=0\n")
	})
	m.transfers()
}

// The package under a systemd that is the first process of its machine: installed, started,
// used by a user without rights, reloaded, hung, killed, upgraded, stopped and removed.
func TestServiceUnderSystemd(t *testing.T) {
	m := boot(t)
	m.copyIn(build(t), "/root/exanet.deb")
	t.Log(strings.TrimSpace(strings.SplitN(m.run("systemctl", "--version"), "\n", 2)[0]))

	m.install()
	if out, err := m.try("systemctl", "is-active", "pfd"); err == nil || strings.TrimSpace(out) != "inactive" {
		t.Errorf("installed but not enabled: %q, %v", out, err)
	}
	if out := m.run("systemd-analyze", "verify", "--man=no", "pfd.service"); out != "" {
		t.Errorf("output of verify:\n%s", out)
	}
	security := m.run("systemd-analyze", "security", "--no-pager", "--threshold=15", "pfd.service")
	score := regexp.MustCompile(`Overall exposure level for pfd.service: [0-9.]+ \w+`).FindString(security)
	if score == "" {
		t.Errorf("output of security:\n%s", security)
	}
	t.Log(score)

	m.step("started", func(t *testing.T) {
		// Type=notify: this returns after pfd's READY.
		m.run("systemctl", "enable", "--now", "pfd")
		if got := strings.TrimSpace(m.run("systemctl", "is-active", "pfd")); got != "active" {
			t.Errorf("is-active: %q", got)
		}
		if s := m.show("StatusText"); !strings.HasPrefix(s, "2 nodes") {
			t.Errorf("status text %q", s)
		}
		none := "0000000000000000"
		for key, want := range map[string]string{"CapBnd": none, "CapPrm": none, "CapEff": none, "NoNewPrivs": "1", "Seccomp": "2"} {
			if got := m.status(key); got != want {
				t.Errorf("%s of pfd is %s, want %s", key, got, want)
			}
		}
		if uid := strings.Fields(m.status("Uid")); len(uid) != 4 || uid[0] == "0" || strings.TrimSpace(m.run("id", "-u", "exanet")) != uid[0] {
			t.Errorf("pfd runs as %q, want the user exanet", uid)
		}
		if j := m.journal(); strings.Contains(j, "a step is not taken") {
			t.Errorf("pfd is not in its sandbox as a whole:\n%s", j)
		}
		m.transfers()
		// Fields of the journal, not parts of a line.
		pid := m.show("MainPID")
		m.until("the journal has the attachments with their fields", func() bool {
			return strings.Contains(m.run("journalctl", "--no-pager", "--output=json", "--output-fields=MESSAGE,GROUP,METHOD,SLOT,PDID,PRIORITY", "_PID="+pid, "NODE=1", "PRIORITY=6"), `"METHOD":"gup"`)
		})
		if out := m.run(asUser("exanetctl", "status")...); !strings.Contains(out, "ready") {
			t.Errorf("status:\n%s", out)
		}
	})

	m.step("reloaded", func(t *testing.T) {
		pid := m.show("MainPID")
		m.put("/etc/exanet/pfd.toml", "timeout-us = 12345\nnodes = 3\n")
		m.run("systemctl", "reload", "pfd")
		m.until("the new configuration takes effect", func() bool {
			return strings.Contains(m.run(asUser("exanetctl", "status", "-j")...), `"timeout_us":12345`)
		})
		m.until("the log names the keys that need a restart", func() bool { return strings.Contains(m.journal(), "keys=[nodes]") })
		if now := m.show("MainPID"); now != pid || m.show("ActiveState") != "active" {
			t.Errorf("after a reload pfd is process %s, before %s", now, pid)
		}
		m.put("/etc/exanet/pfd.toml", "timeout-us = 12345\nnode = 3\n")
		if out, err := m.try("systemctl", "reload", "pfd"); err == nil {
			t.Errorf("a file with an error is reloaded: %s", out)
		}
		m.until("the journal has the error", func() bool {
			return strings.Contains(m.journal(), `/etc/exanet/pfd.toml:2: unknown key "node"`)
		})
		if now := m.show("MainPID"); now != pid || m.show("ActiveState") != "active" {
			t.Errorf("after a bad file pfd is process %s, before %s", now, pid)
		}
		// systemd does not restart it repeatedly with an invalid configuration either.
		if out, err := m.try("systemctl", "restart", "pfd"); err == nil || m.show("ActiveState") != "failed" || m.show("NRestarts") != "0" {
			t.Errorf("started with a file with an error: %s%v, state %s, restarts %s", out, err, m.show("ActiveState"), m.show("NRestarts"))
		}
		m.put("/etc/exanet/pfd.toml", "")
		m.run("systemctl", "restart", "pfd")
	})

	// A call that the unit's filter forbids kills pfd in this test. In service it returns
	// EPERM, which might not be noticed.
	m.put("/etc/systemd/system/pfd.service.d/test.conf", "[Service]\nSystemCallErrorNumber=kill\nWatchdogSec=4s\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", "pfd")

	m.step("metrics as documented", func(t *testing.T) {
		m.put("/etc/exanet/pfd.toml", "")
		steps := m.document("docs/service.md", "metrics.conf")
		before, after, ok := strings.Cut(steps, "echo ")
		if !ok {
			t.Fatalf("docs/service.md has the steps\n%s", steps)
		}
		// Without the first step of the document, like a hasty reader.
		m.put("/etc/exanet/pfd.toml", "metrics-listen = \"127.0.0.1:9482\"\n")
		if out, err := m.try("systemctl", "restart", "pfd"); err == nil {
			t.Errorf("a unit without a network listens on TCP: %s", out)
		}
		m.until("the error names the drop-in", func() bool {
			return strings.Contains(m.journal(), "install its drop-in /usr/share/exanet/systemd/metrics.conf")
		})
		m.put("/etc/exanet/pfd.toml", "")
		m.run("systemctl", "reset-failed", "pfd")
		m.run("sh", "-ec", before+"echo "+after)
		m.transfers()
		if out := m.run(asUser("curl", "-fsS", "http://127.0.0.1:9482/metrics")...); !strings.Contains(out, "exanet_faults_total{") {
			t.Errorf("metrics by TCP:\n%s", out)
		}
		m.run("rm", "-r", "/etc/systemd/system/pfd.service.d")
		m.put("/etc/exanet/pfd.toml", "timeout-us = 12345\nnodes = 3\n")
		m.run("systemctl", "daemon-reload")
		m.run("systemctl", "restart", "pfd")
	})

	container := m.container("/run/exanet")
	inside := func(what string) {
		m.t.Helper()
		// A user with the machine's directory: pfd's user is trusted there, as on the machine.
		out, err := m.try(append(container, asUser("exanetctl", "write", "--count", "3", "--dst", "absent")...)...)
		if err != nil || !strings.Contains(out, "every byte is right") {
			m.t.Errorf("a container that has /run/exanet, after %s: %v\n%s", what, err, out)
		}
	}

	m.step("every method within the filter", func(t *testing.T) {
		pid := m.show("MainPID")
		for _, method := range []string{"gup", "touch", "uffd", "populate"} {
			m.transfers("--method", method)
		}
		for _, what := range []string{"node", "domain", "channel", "smmu", "fifo", "counter", "fault"} {
			m.run(asUser("exanetctl", what)...)
		}
		m.run("systemctl", "reload", "pfd")
		if now := m.show("MainPID"); now != pid {
			t.Errorf("pfd is process %s, before %s:\n%s", now, pid, m.journal())
		}
	})

	m.step("with other hosts", func(t *testing.T) {
		m.put("/etc/exanet/pfd.toml", "timeout-us = 12345\n")
		m.hosts(t)
		m.put("/etc/exanet/pfd.toml", "timeout-us = 12345\nnodes = 3\n")
		m.run("systemctl", "restart", "pfd")
	})

	m.step("watched", func(t *testing.T) {
		pid, fed := m.show("MainPID"), m.show("WatchdogTimestampMonotonic")
		m.until("pfd feeds the watchdog", func() bool { return m.show("WatchdogTimestampMonotonic") != fed })
		m.run("kill", "-STOP", pid)
		m.restarted(pid, "a watchdog's end")
		if j := m.journal(); !strings.Contains(j, "Watchdog timeout") {
			t.Errorf("the journal does not report the watchdog:\n%s", j)
		}
	})

	m.step("killed", func(t *testing.T) {
		pid := m.show("MainPID")
		m.run("kill", "-KILL", pid)
		m.restarted(pid, "SIGKILL")
		if n := m.show("NRestarts"); n != "2" {
			t.Errorf("%s restarts, want two: the watchdog's and the test's", n)
		}
		inside("SIGKILL")
	})

	m.step("upgraded", func(t *testing.T) {
		pid := m.show("MainPID")
		m.run("systemctl", "reset-failed", "pfd") // the restarts of this test are not a crash loop
		m.install()
		m.restarted(pid, "an upgrade")
		inside("an upgrade")
	})

	m.step("stopped", func(t *testing.T) {
		// A client with transfers in flight is notified, and ends.
		busy := m.command(asUser("exanetctl", "write", "--size", "1MiB", "--count", "1000000", "--dst", "absent")...)
		var said strings.Builder
		busy.Stderr = &said
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		m.until("the client is attached", func() bool {
			return strings.Contains(m.run("exanetctl", "domain"), fmt.Sprint(user))
		})
		m.run("systemctl", "stop", "pfd")
		if err := busy.Wait(); err == nil || !strings.Contains(said.String(), "exanetctl: ") {
			t.Errorf("the client whose pfd has ended: %v, %q", err, &said)
		}
		t.Logf("output of the client: %s", strings.TrimSpace(said.String()))
		if r, code := m.show("Result"), m.show("ExecMainStatus"); r != "success" || code != "0" {
			t.Errorf("the result is %s, exit code %s", r, code)
		}
		if out := m.run("find", "/run/exanet", "-type", "s"); out != "" {
			t.Errorf("the sockets still exist: %s", out)
		}
		if out, err := m.try(append(container, asUser("exanetctl", "status")...)...); err == nil || !strings.Contains(out, "no pfd is at /run/exanet/pfd.sock") {
			t.Errorf("a container whose pfd has ended: %v, %s", err, out)
		}
		m.run("systemctl", "start", "pfd")
		inside("a stop and a start")
		m.run("systemctl", "stop", "pfd")
	})

	m.step("removed", func(t *testing.T) {
		m.run("systemctl", "start", "pfd")
		m.run("dpkg", "--no-triggers", "--purge", "exanet")
		if out, err := m.try("systemctl", "is-active", "pfd"); err == nil || strings.TrimSpace(out) != "inactive" {
			t.Errorf("after the removal: %q, %v", out, err)
		}
		for _, path := range []string{"/usr/sbin/pfd", "/etc/exanet", "/var/lib/exanet", "/run/exanet"} {
			if _, err := os.Stat(filepath.Join(fmt.Sprintf("/proc/%d/root", m.cmd.Process.Pid), path)); err == nil {
				t.Errorf("%s still exists", path)
			}
		}
	})

	for _, bad := range []string{"SIGSYS", "status=31", "seccomp", "Bad system call", "core-dump, status=11"} {
		if j := m.journal(); strings.Contains(j, bad) {
			t.Errorf("the journal has %q:\n%s", bad, j)
		}
	}
}
