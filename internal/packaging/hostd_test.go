package packaging

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// systemd accepts the unit of exanet-hostd and rates its confinement as good. Its network is most of
// the exposure that remains.
func TestHostdUnitBySystemd(t *testing.T) {
	need(t, "systemd-analyze")
	sys := t.TempDir()
	put := func(path, text string, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(sys, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []string{"sysinit.target", "basic.target", "shutdown.target", "multi-user.target", "network-online.target"} {
		put("usr/lib/systemd/system/"+unit, "[Unit]\nDescription=of the test\n", 0o644)
	}
	put("usr/sbin/exanet-hostd", "#!/bin/sh\n", 0o755)
	put("bin/kill", "#!/bin/sh\n", 0o755)
	text, err := os.ReadFile(filepath.Join(root, "contrib", "systemd", "exanet-hostd.service"))
	if err != nil {
		t.Fatal(err)
	}
	put("etc/systemd/system/exanet-hostd.service", string(text), 0o644)
	if out := run(t, "systemd-analyze", "verify", "--man=no", "--root="+sys, "exanet-hostd.service"); out != "" {
		t.Errorf("output of verify:\n%s", out)
	}
	out := run(t, "systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=15", "--root="+sys, "exanet-hostd.service")
	if !strings.Contains(out, "Overall exposure level for exanet-hostd.service") {
		t.Errorf("output of security:\n%s", out)
	}
	t.Log(out)
}

// hosts runs exanet-hostd beside pfd, as exanetctl host init says. The other host is never there.
func (m *machine) hosts(t *testing.T) {
	show := func(property string) string {
		return strings.TrimSpace(m.run("systemctl", "show", "exanet-hostd", "--value", "-p", property))
	}
	connected := func(why string) {
		t.Helper()
		m.until("exanet-hostd is connected to pfd "+why, func() bool {
			return show("StatusText") == "host a of lab: pfd is connected, 0 of 1 links up" && show("ActiveState") == "active"
		})
	}
	m.run("mkdir", "-p", "/etc/default")
	// Without a list it does not start, and systemd does not try again.
	if out, err := m.try("systemctl", "start", "exanet-hostd"); err == nil || show("NRestarts") != "0" {
		t.Errorf("started without a list: %s, %s restarts", out, show("NRestarts"))
	}
	out := m.run("exanetctl", "host", "init", "/root/lab", "a=127.0.0.1,nodes=2", "b=127.0.0.2:9481")
	steps := m.steps(t, out, "Host a:")
	// The commands copy to this machine instead of another one.
	steps = strings.ReplaceAll(strings.ReplaceAll(steps, "scp ", "cp "), " root@127.0.0.1:", " ")
	steps = strings.ReplaceAll(steps, "ssh root@127.0.0.1 ", "sh -ec ")
	// A call that the unit's filter forbids kills it in this test.
	m.put("/etc/systemd/system/exanet-hostd.service.d/test.conf", "[Service]\nSystemCallErrorNumber=kill\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "reset-failed", "exanet-hostd")
	m.run("sh", "-ec", steps)
	connected("as host init says")
	if out := m.run("exanetctl", "host"); !strings.Contains(out, "127.0.0.2:9481") || strings.Contains(out, "not in effect") {
		t.Errorf("hosts:\n%s", out)
	}

	status := m.run("cat", "/proc/"+show("MainPID")+"/status")
	uid := strings.TrimSpace(m.run("id", "-u", "exanet-host"))
	for _, want := range []string{"Uid:\t" + uid + "\t", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if uid == "0" || !strings.Contains(status, want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}

	pid := show("MainPID")
	list := m.run("cat", "/etc/exanet/hosts.toml")
	m.put("/etc/exanet/hosts.toml", list+"node = 1\n")
	if out, err := m.try("systemctl", "reload", "exanet-hostd"); err == nil {
		t.Errorf("a list with an error is reloaded: %s", out)
	}
	m.until("the journal has the error", func() bool { return strings.Contains(m.journal(), `unknown key "host.node"`) })
	m.put("/etc/exanet/hosts.toml", list)
	m.run("systemctl", "reload", "exanet-hostd")
	connected("after a reload")
	m.run("systemctl", "restart", "pfd")
	connected("after a restart of pfd")
	if show("MainPID") != pid {
		t.Errorf("exanet-hostd is process %s, before %s", show("MainPID"), pid)
	}
	m.run("kill", "-KILL", pid)
	m.until("exanet-hostd is started again", func() bool { now := show("MainPID"); return now != pid && now != "0" })
	connected("after SIGKILL")
	m.run("systemctl", "stop", "exanet-hostd")
	if r, code := show("Result"), show("ExecMainStatus"); r != "success" || code != "0" {
		t.Errorf("the result is %s, exit code %s", r, code)
	}
	m.transfers()
	// The purge of the package leaves files that an administrator has copied.
	m.run("sh", "-ec", "cd /etc/exanet && rm hosts.toml groups ca.pem a.pem a.key a.pfd.toml")
}

// steps returns the commands that follow a line of the output that begins with after.
func (m *machine) steps(t *testing.T, out, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(out, "\n"+after)
	if !ok {
		t.Fatalf("no line %q in\n%s", after, out)
	}
	list := ""
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, "  ") {
			list += line
		} else if list != "" {
			break
		}
	}
	return list
}
