package house

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// stubs creates a directory of programs: those with a text are shell scripts, the others link
// to the system's.
func stubs(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range programs {
		path := filepath.Join(dir, name)
		if text == "" {
			real, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(real, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// setup.sh installs only what the tests lack, asks nothing, and reports what it did.
func TestSetup(t *testing.T) {
	if _, err := os.Stat("/usr/include/stdlib.h"); err != nil {
		t.Skip("the C library's headers are not installed here: setup.sh would install them, too")
	}
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("systemd is not installed here: setup.sh would install it, too")
	}
	if _, err := os.Stat("/usr/include/rdma/providers/fi_prov.h"); err != nil {
		t.Skip("libfabric's headers are not installed here: setup.sh would install them, too")
	}
	const apt = `echo "$@" >>"$LOG"`
	const aptWithoutLists = `echo "$@" >>"$LOG"; case "$1" in update) : >"$LOG.lists" ;; install) [ -e "$LOG.lists" ] ;; esac`
	const want = "install -y -qq --no-install-recommends gcc git\n"
	for _, c := range []struct {
		name     string
		programs map[string]string
		fails    bool
		output   string
		log      string
	}{
		{"all is there", map[string]string{"gcc": "exit", "git": "exit", "go": "exit", "apt-get": apt}, false, "", ""},
		{"no terminal", map[string]string{"gcc": "exit", "git": "exit", "go": "exit", "apt-get": apt, "id": "echo 0", "tmux": "none"}, false, "setup: installed tmux (apt-get)\n", "install -y -qq --no-install-recommends tmux\n"},
		{"no browser", map[string]string{"gcc": "exit", "git": "exit", "go": "exit", "apt-get": apt, "id": "echo 0", "chromium": "none"}, false, "setup: installed chromium-headless-shell (apt-get)\n", "install -y -qq --no-install-recommends chromium-headless-shell\n"},
		{"no browser to be had", map[string]string{"gcc": "exit", "git": "exit", "go": "exit", "id": "echo 0", "chromium": "none"}, false, "setup: missing: chromium-headless-shell; this is not Debian: install them with your package manager\nsetup: no Chromium: the tests of exanetctl ui in a browser fail under STRICT=1 and are skipped otherwise\n", ""},
		{"as root", map[string]string{"go": "exit", "apt-get": apt, "id": "echo 0"}, false, "setup: installed gcc git (apt-get)\n", want},
		{"by sudo", map[string]string{"go": "exit", "apt-get": apt, "id": "echo 1000", "sudo": `[ "$1" = -n ] && shift && "$@"`, "true": ""}, false, "setup: installed gcc git (apt-get)\n", want},
		{"sudo would ask", map[string]string{"go": "exit", "apt-get": apt, "id": "echo 1000", "sudo": "exit 1"}, true, "run as root: apt-get install -y gcc git", ""},
		{"lists are missing", map[string]string{"go": "exit", "apt-get": aptWithoutLists, "id": "echo 0"}, false, "setup: installed gcc git (apt-get)\n", want + "update -qq\n" + want},
		{"no such package", map[string]string{"go": "exit", "apt-get": apt + "; echo no such package; exit 100", "id": "echo 0"}, true, "no such package", want + "update -qq\n"},
		{"no apt", map[string]string{"go": "exit", "id": "echo 0"}, true, "not Debian", ""},
		{"no go", map[string]string{"gcc": "exit", "git": "exit", "apt-get": apt}, true, "go is missing", ""},
		{"an old go", map[string]string{"go": "echo go1.19.8", "apt-get": apt}, true, "Go 1.19 is too old: install any Go from 1.21 on", ""},
		{"a go that fetches another", map[string]string{"gcc": "exit", "git": "exit", "go": `[ "$1" = env ] && echo go1.21.0; exit 0`, "apt-get": apt}, false, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"mktemp", "rm", "cat", "env", "sed", "dirname"} {
				c.programs[name] = ""
			}
			for _, name := range []string{"tmux", "chromium", "tshark", "promtool", "lintian", "ucx_perftest", "fi_pingpong", "stress-ng", "valgrind", "mpirun", "mpicc", "lmp", "redis-benchmark"} {
				if c.programs[name] == "none" {
					delete(c.programs, name)
				} else {
					c.programs[name] = "exit"
				}
			}
			log := filepath.Join(t.TempDir(), "log")
			cmd := exec.CommandContext(t.Context(), "/bin/sh", filepath.Join(root, "contrib", "scripts", "setup.sh"), "test")
			cmd.Env = []string{"PATH=" + stubs(t, c.programs), "LOG=" + log}
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fails {
				t.Errorf("%v, want an error: %v\n%s", err, c.fails, out)
			}
			if c.fails && !strings.Contains(string(out), c.output) || !c.fails && string(out) != c.output {
				t.Errorf("output %q, want %q", out, c.output)
			}
			got, err := os.ReadFile(log)
			if err != nil && c.log != "" {
				t.Error(err)
			}
			if string(got) != c.log {
				t.Errorf("apt-get was called with\n%s\nwant\n%s", got, c.log)
			}
		})
	}
}

// test.sh makes every target even if an earlier one fails, names the failed ones last, and adds
// up each package's time over all targets.
func TestTestScript(t *testing.T) {
	dir := t.TempDir()
	fake := filepath.Join(dir, "make")
	if err := os.WriteFile(fake, []byte(`#!/bin/sh
case $2 in
good) printf 'ok  \texanet/x\t12.3s\n' ;;
bad) printf -- '--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/sub (0.0s)\nFAIL\nFAIL\texanet/y\t3.2s\nFAIL\texanet/z [build failed]\nok  \texanet/q\t(cached)\nFAIL\n'; exit 1 ;;
esac
`), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		targets []string
		fails   bool
		ends    string
	}{
		{[]string{"good"}, false, "test: slowest packages:\n     12.3s exanet/x\ntest: all passed\n"},
		{[]string{"bad", "good", "good"}, true, "test: make bad failed\nok  \texanet/x\t12.3s\nok  \texanet/x\t12.3s\ntest: slowest packages:\n     24.6s exanet/x\n      3.2s exanet/y\ntest: failed: bad\n  exanet/y TestA\n  exanet/y TestA/sub\n  exanet/z [build failed]\n"},
	} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{filepath.Join(root, "contrib", "scripts", "test.sh")}, c.targets...)...)
		cmd.Env = append(os.Environ(), "MAKE="+fake)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.HasSuffix(string(out), c.ends) {
			t.Errorf("%v: %v\n%s\nwant at the end\n%s", c.targets, err, out, c.ends)
		}
	}
}

// CI runs the test command of the README.
func TestCIRunsTheREADMEsTest(t *testing.T) {
	const command = "make test"
	if !strings.Contains(read(t, "README.md"), "\n"+command+"\n") {
		t.Errorf("README.md does not name %q as a command", command)
	}
	var commands []string
	for line := range strings.Lines(read(t, ".ci/run")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			commands = append(commands, line)
		}
	}
	want := []string{"set -eu", `cd "$(dirname "$0")/.."`, "exec " + command}
	if !slices.Equal(commands, want) {
		t.Errorf(".ci/run is %q, want %q", commands, want)
	}
}

var (
	makeTarget = regexp.MustCompile("(?m)(?:`|^)make ([a-z]+)")
	link       = regexp.MustCompile(`\]\(([^):]+)\)`)
	heading    = regexp.MustCompile("(?m)^#+ (.*)$")
)

// Names in the documents exist: make's targets, files and headings. Pictures are well-formed.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, name := range append(documents(t), "CHANGELOG.md") {
		text := read(t, name)
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
				t.Errorf("%s names make %s, which Makefile does not have", name, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s links to %s, which has no such heading", name, m[1])
			}
			if filepath.Ext(target) == ".svg" {
				if err := xml.Unmarshal([]byte(read(t, target)), new(struct {
					XMLName xml.Name `xml:"http://www.w3.org/2000/svg svg"`
				})); err != nil {
					t.Errorf("%s: %v", target, err)
				}
			}
		}
	}
}

// anchors returns the link targets of a document's headings.
func anchors(text string) (list []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(name, " ", "-"))
	}
	return list
}

// With an unknown argument setup.sh installs nothing and prints the usage.
func TestSetupUsage(t *testing.T) {
	dir := stubs(t, map[string]string{"go": "exit", "apt-get": "echo installed", "id": "echo 0"})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"tset"}, 2, `unexpected argument "tset"`},
		{[]string{"test", "guests"}, 2, `unexpected argument "test guests"`},
		{[]string{""}, 2, `unexpected argument ""`},
		{[]string{"--all"}, 2, `unexpected argument "--all"`},
		{[]string{"--help"}, 0, "usage: setup.sh [test|guests|mpi]"},
	} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{filepath.Join(root, "contrib", "scripts", "setup.sh")}, c.args...)...)
		cmd.Env = []string{"PATH=" + dir}
		out, _ := cmd.CombinedOutput() // the exit code is checked below
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) || !strings.Contains(string(out), "usage: ") || strings.Contains(string(out), "installed") {
			t.Errorf("setup.sh %q: exit code %d, %q", c.args, code, out)
		}
	}
}

// No script ignores an unknown argument.
func TestScriptsUsage(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join(root, "contrib", "scripts", "*.sh"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", script, "--bogus")
		cmd.Env = []string{"PATH=/nonexistent"} // commands after the check fail
		out, _ := cmd.CombinedOutput()          // the exit code is checked below
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), "usage: "+filepath.Base(script)) || !strings.Contains(string(out), `"--bogus"`) {
			t.Errorf("%s --bogus: exit code %d, %q", filepath.Base(script), code, out)
		}
	}
}

// fuzz.sh runs every target even if an earlier one fails, and names the failed ones last.
func TestFuzzScript(t *testing.T) {
	dir := stubs(t, map[string]string{
		"go":      `case "$*" in "list ./...") echo x y ;; *-list*) echo FuzzA ;; *x) exit 1 ;; *) echo "ran $*" ;; esac`,
		"dirname": "", "grep": "",
	})
	cmd := exec.CommandContext(t.Context(), "/bin/sh", filepath.Join(root, "contrib", "scripts", "fuzz.sh"), "5s")
	cmd.Env = []string{"PATH=" + dir}
	out, _ := cmd.CombinedOutput() // the exit code is checked below
	const want = "fuzz: x FuzzA (5s)\nfuzz: y FuzzA (5s)\nran test -run ^$ -fuzz ^FuzzA$ -fuzztime 5s y\nfuzz: failed: x:FuzzA\n"
	if code := cmd.ProcessState.ExitCode(); code != 1 || string(out) != want {
		t.Errorf("exit code %d, %q, want %q", code, out, want)
	}
}
