package packaging

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the top of the repository.
var root = filepath.Join("..", "..")

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// need skips the test if a program that it needs is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// build builds the package in a directory of the test.
func build(t *testing.T) string {
	t.Helper()
	need(t, "make", "dpkg", "dpkg-deb")
	if out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+filepath.Join(root, "contrib", "scripts", "tools.mod"), "nfpm", "--version").CombinedOutput(); err != nil {
		t.Skipf("nfpm is not available: its modules are neither in the cache nor at a proxy: %v\n%s", err, out)
	}
	dir := t.TempDir()
	t.Setenv("DEB_DIR", dir)
	t.Setenv("VERSION", "1.2.3~test")
	// Another test (internal/guests) builds it in the same directory, too.
	run(t, "flock", "Makefile", "make", "deb")
	list, err := filepath.Glob(filepath.Join(dir, "exanet_1.2.3~test_*.deb"))
	if err != nil || len(list) != 1 {
		t.Fatalf("packages %q, %v", list, err)
	}
	return list[0]
}

// files lists the files below dir without directories and dpkg's own files.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if rel == "var/lib/dpkg" {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The package is installed into a separate system and removed: a purge leaves nothing, a
// removal leaves the configuration.
func TestInstallAndRemove(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("dpkg --root needs root")
	}
	deb := build(t)
	sys := t.TempDir()
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(filepath.Join(sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(sys, "var/lib/dpkg", f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) {
		t.Helper()
		run(t, "dpkg", append([]string{"--root=" + sys, "--force-script-chrootless", "--force-not-root", "--log=/dev/null"}, args...)...)
	}
	dpkg("--install", deb)
	got := files(t, sys)
	for _, want := range []string{
		"usr/sbin/pfd", "usr/sbin/exanet-hostd", "usr/lib/systemd/system/exanet-hostd.service", "usr/share/man/man8/exanet-hostd.8.gz", "usr/bin/pfd", "usr/bin/exanetctl", "usr/lib/sysusers.d/exanet.conf", "usr/share/exanet/prometheus/pfd.rules.yml", "usr/share/exanet/systemd/metrics.conf", "etc/exanet/pfd.toml", "usr/lib/systemd/system/pfd.service", "usr/lib/sysusers.d/exanet.conf",
		"usr/share/man/man8/pfd.8.gz", "usr/share/man/man1/exanetctl.1.gz", "usr/share/man/man1/exanetctl-domain-grant.1.gz",
		"usr/share/man/man7/exanet.7.gz", "usr/share/man/man5/pfd.toml.5.gz", "usr/share/doc/exanet/changelog.gz", "usr/share/doc/exanet/examples/kubernetes/pfd.yaml",
		"usr/share/doc/exanet/examples/putget/main.go", "usr/share/doc/exanet/v1.schema.json", "usr/share/exanet/wireshark/exanet.lua", "usr/share/exanet/slurm/prolog",
		"usr/share/bash-completion/completions/exanetctl", "usr/share/zsh/vendor-completions/_exanetctl",
		"usr/share/fish/vendor_completions.d/exanetctl.fish", "usr/share/exanet/grafana/pfd.json", "usr/share/exanet/tmpfiles.d/exanet-folios.conf",
		"usr/share/doc/exanet/copyright", "usr/share/doc/exanet/attach.md",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not installed", want)
		}
	}
	documentLinks(t, filepath.Join(sys, "usr/share/doc/exanet"))
	if out := run(t, filepath.Join(sys, "usr/sbin/pfd"), "--version"); !strings.Contains(out, "pfd version") {
		t.Errorf("pfd's output is %q", out)
	}
	// The configuration in the package is valid, including its commented-out lines.
	conf := filepath.Join(sys, "etc/exanet/pfd.toml")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	keys := regexp.MustCompile(`(?m)^# ([a-z-]+ = )`)
	if n := len(keys.FindAll(text, -1)); n < 8 {
		t.Errorf("the configuration names %d keys", n)
	}
	all := append(keys.ReplaceAll(text, []byte("$1")), "no-such-key = 1\n"...)
	full := filepath.Join(t.TempDir(), "pfd.toml")
	if err := os.WriteFile(full, all, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(sys, "usr/sbin/pfd"), "--config", full, "--socket", filepath.Join(t.TempDir(), "s")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), `unknown key "no-such-key"`) {
		t.Errorf("with all keys: %v, %s", err, out)
	}

	dpkg("--remove", "exanet")
	if got := files(t, sys); !slices.Equal(got, []string{"etc/exanet/pfd.toml"}) {
		t.Errorf("after a removal there are %q, want only the configuration", got)
	}
	dpkg("--purge", "exanet")
	if got := files(t, sys); len(got) != 0 {
		t.Errorf("after a purge there are %q", got)
	}
}

var docLink = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// documentLinks follows the relative links of all documents below dir: each target is an
// existing file below dir.
func documentLinks(t *testing.T, dir string) {
	t.Helper()
	links := 0
	for _, rel := range files(t, dir) {
		if filepath.Ext(rel) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, rel))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range docLink.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			to := filepath.Join(filepath.Dir(rel), m[1])
			if _, err := os.Stat(filepath.Join(dir, to)); err != nil || !filepath.IsLocal(to) {
				t.Errorf("%s of the package links %s: %v", rel, m[1], err)
			}
		}
	}
	if links < 50 {
		t.Errorf("%d relative links in the package's documents", links)
	}
}

// Debian's linter reports nothing that contrib/lintian-overrides does not cover, in any of the
// packages.
func TestLintian(t *testing.T) {
	if _, err := exec.LookPath("lintian"); err != nil {
		const why = "no lintian: `sh contrib/scripts/setup.sh test` installs it"
		if os.Getenv("STRICT") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	list, err := filepath.Glob(filepath.Join(filepath.Dir(build(t)), "*.deb"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	for _, deb := range list {
		if out := run(t, "lintian", "--allow-root", "--fail-on", "error,warning", deb); strings.TrimSpace(out) != "" {
			t.Errorf("%s:\n%s", filepath.Base(deb), out)
		}
	}
}

// settings reads the keys of the unit.
func settings(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "contrib", "systemd", "pfd.service"))
	if err != nil {
		t.Fatal(err)
	}
	all, section := map[string]string{}, ""
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || section == "" {
				t.Fatalf("line %q is not a setting", line)
			}
			all[section+"/"+key] = value
		}
	}
	return all
}

// The settings of the unit that pfd relies on, and those that confine it.
func TestUnit(t *testing.T) {
	unit := settings(t)
	for key, want := range map[string]string{
		"Service/Type": "notify", "Service/ExecReload": "+/bin/kill -HUP $MAINPID", "Service/WatchdogSec": "30s", "Service/RestartPreventExitStatus": "2",
		"Service/RuntimeDirectory": "exanet", "Service/RuntimeDirectoryPreserve": "yes", "Service/User": "exanet", "Service/CapabilityBoundingSet": "", "Service/AmbientCapabilities": "", "Service/PrivateNetwork": "yes",
		"Service/NoNewPrivileges": "yes", "Service/ProtectSystem": "strict", "Service/RestrictAddressFamilies": "AF_UNIX AF_NETLINK",
		"Service/ExecStart": "/usr/sbin/pfd --config /etc/exanet/pfd.toml --sandbox=strict",
	} {
		if got, ok := unit[key]; !ok || got != want {
			t.Errorf("%s is %q, want %q", key, unit[key], want)
		}
	}
}

// systemd accepts the unit and rates its confinement as good.
func TestUnitBySystemd(t *testing.T) {
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
	for _, target := range []string{"sysinit", "basic", "shutdown", "multi-user"} {
		put("usr/lib/systemd/system/"+target+".target", "[Unit]\nDescription=of the test\n", 0o644)
	}
	put("usr/sbin/pfd", "#!/bin/sh\n", 0o755)
	put("bin/kill", "#!/bin/sh\n", 0o755)
	text, err := os.ReadFile(filepath.Join(root, "contrib", "systemd", "pfd.service"))
	if err != nil {
		t.Fatal(err)
	}
	put("etc/systemd/system/pfd.service", string(text), 0o644)
	if out := run(t, "systemd-analyze", "verify", "--man=no", "--root="+sys, "pfd.service"); out != "" {
		t.Errorf("output of verify:\n%s", out)
	}
	out := run(t, "systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=15", "--root="+sys, "pfd.service")
	if !strings.Contains(out, "Overall exposure level for pfd.service") {
		t.Errorf("output of security:\n%s", out)
	}
}

// The manual pages have every flag of their program.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []struct{ program, page string }{{"pfd", "pfd.8"}, {"exanetctl", "exanetctl-domain-kick.1"}} {
		run(t, "go", "run", "-tags", "man", "./cmd/"+p.program, dir)
		text, err := os.ReadFile(filepath.Join(dir, p.page))
		if err != nil {
			t.Fatal(err)
		}
		help := run(t, "go", append([]string{"run", "./cmd/" + p.program}, map[string][]string{"pfd": {"--help"}, "exanetctl": {"domain", "kick", "--help"}}[p.program]...)...)
		for _, m := range regexp.MustCompile(`(?m)--([a-z][a-z-]+)`).FindAllStringSubmatch(help, -1) {
			flag := m[1]
			if !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), "--"+flag) && flag != "version" {
				t.Errorf("%s misses --%s", p.page, flag)
			}
		}
	}
}
