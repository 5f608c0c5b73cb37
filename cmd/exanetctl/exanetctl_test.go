package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/qemu/agent"
)

// The times in golden files are in one time zone.
func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

var update = flag.Bool("update", false, "write the golden files anew; look at the difference before you commit it")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

// The table and the JSON of each object.
func TestShow(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, c := range []struct {
		name, line string
	}{
		{"status", "status"},
		{"node", "node show"},
		{"registers", "node show 0 --registers pl"},
		{"domain", "domain show"},
		{"window", "domain window"},
		{"channel", "channel show"},
		{"transaction", "transaction show"},
		{"smmu", "smmu show"},
		{"fifo", "fifo show"},
		{"gsas", "gsas show"},
		{"gsas-tree", "gsas tree"},
		{"gsas-thread", "gsas thread"},
		{"host", "host show"},
		{"counter", "counter show"},
		{"fault", "fault show"},
		{"stages", "fault stages"},
	} {
		for _, format := range []string{"table", "json"} {
			t.Run(c.name+"/"+format, func(t *testing.T) {
				args := append(strings.Fields(c.line), "--socket", d.socket, "-o", format)
				if format == "json" {
					args = append(args, "-p")
				}
				code, out, errs := ctl(args...)
				if code != exitOK || errs != "" {
					t.Fatalf("exit code %d, standard error %q", code, errs)
				}
				if format == "json" {
					var v struct {
						Version int `json:"version"`
					}
					if err := json.Unmarshal([]byte(out), &v); err != nil || v.Version != 1 {
						t.Errorf("version %d, %v", v.Version, err)
					}
				}
				golden(t, c.name+"."+format, out)
			})
		}
	}
}

// Objects and commands may be abbreviated; show is the default.
func TestAbbreviations(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, c := range []struct{ short, long string }{
		{"node", "node show"},
		{"n", "node show"},
		{"no sh", "node show"},
		{"dom", "domain show"},
		{"ch s 0/3/5", "channel show 0/3/5"},
		{"ho c", "host show c"}, // not host cut
		{"fi", "fifo show"},
		{"fa", "fault show"},
		{"sta", "status"},
		{"cou faults", "counter show faults"},
		{"counter s", "counter show s"}, // not show itself
		{"domain -j", "domain show -o json"},
	} {
		code, short, errs := ctl(append(strings.Fields(c.short), "--socket", d.socket)...)
		if code != exitOK {
			t.Errorf("%s: exit code %d, %s", c.short, code, errs)
		}
		_, long, _ := ctl(append(strings.Fields(c.long), "--socket", d.socket)...)
		if short != long {
			t.Errorf("%s is not %s:\n%s\n%s", c.short, c.long, short, long)
		}
	}
}

func TestFilters(t *testing.T) {
	d := startDaemon(t, fakeAnswers)
	for _, c := range []struct {
		line   string
		has    string
		hasNot string
	}{
		{"domain show 1", "4712", "4711"},
		{"domain show 0/3", "4711", "4712"},
		{"channel show 0/3/5", "decode error", "completed"},
		{"transaction show 1/1023", "retransmitted", "paused"},
		{"smmu show 0/4", "0/4", "0/3"},
		{"smmu show --all", "0/4", "no such"},
		{"smmu", "0/3", "0/4"},
		{"gsas 1/34", "1001", "1000"},
		{"gsas thread 0/32", "4711", "1001"},
		{"gsas tree 1/34", "no tree has memory", "1000"},
		{"host b", "unreachable", "10.0.0.3"},
		{"counter show timeouts", "timeouts_total", "faults_total"},
		{"counter show --all", "timeouts_total", "no such"},
		{"counter show --describe", "faults served", "no such"},
		{"fault -o csv", "1764167045123456789", "e+18"},
	} {
		code, out, errs := ctl(append(strings.Fields(c.line), "--socket", d.socket)...)
		if code != exitOK || !strings.Contains(out, c.has) || strings.Contains(out, c.hasNot) {
			t.Errorf("%s: exit code %d, %s, want %q and not %q in:\n%s", c.line, code, errs, c.has, c.hasNot, out)
		}
	}
	d.queries = nil
	if code, _, errs := ctl("fault", "show", "1", "--last", "5", "--socket", d.socket); code != exitOK {
		t.Error(errs)
	}
	if len(d.queries) != 2 || d.queries[0] != "GET /v1/faults?n=5&node=1" || d.queries[1] != "GET /v1/status" {
		t.Errorf("asked %q", d.queries)
	}
}

func TestExitCodes(t *testing.T) {
	d := startDaemon(t, map[string]any{})
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		line string
		code int
		text string // on standard error
	}{
		{"version", exitOK, ""},
		{"", exitOK, ""},
		{"node show 9 --socket " + d.socket, exitFailed, "no node 9"},
		{"nonsense", exitUsage, "nonsense"},
		{"s", exitUsage, "ambiguous: sim, smmu, status"},
		{"help nonsense", exitUsage, "nonsense"},
		{"help domain nonsense", exitUsage, "nonsense"},
		{"completion nonsense", exitUsage, "nonsense"},
		{"emu serve --socket-dir /tmp/" + strings.Repeat("d", 100), exitUsage, "at most 107"},
		{"write --group B!", exitUsage, "only letters, digits"},
		{"node show 1 2", exitUsage, "node show"},
		{"node show x", exitUsage, "want NODE in numbers"},
		{"channel show 1/2/3/4", exitUsage, "NODE/SLOT/CHANNEL"},
		{"node --frob", exitUsage, "--frob"},
		{"node -o xml", exitUsage, "table, wide, json, csv"},
		{"fault show -n 0", exitUsage, "1 to 1024"},
		{"status --socket " + strings.Repeat("x", 200), exitUsage, "at most"},
		{"status --socket " + none, exitNoDaemon, "pfd --nodes 2 --socket " + none},
		{"write --socket " + none, exitNoDaemon, "pfd --nodes 2"},
		{"write --size 4X", exitUsage, "no unit"},
		{"write --size 4GiB", exitUsage, "at most 4294967295"},
		{"write --src gone", exitUsage, "absent"},
		{"write --method mlock", exitUsage, "gup"},
		{"write --policy p9", exitUsage, "p4"},
		{"write --count 0", exitUsage, "count 0"},
		{"write --timeout 0s", exitUsage, "more than 0"},
		{"write something", exitUsage, "unexpected argument \"something\": want `exanetctl write"},
		{"bench bogus", exitUsage, "\"bogus\": want all, "},
		{"perf lat -n 0", exitUsage, "give a count (-n) or a duration (-D)"},
		{"write --size 0", exitUsage, "1 byte or more"},
		{"write --size 1TiB", exitUsage, `no unit "TiB"`},
		{"wirte", exitUsage, "did you mean write?"},
		{"write --methd touch", exitUsage, "--methd: did you mean --method?"},
		{"write -method touch", exitUsage, "-method: did you mean --method?"},
		{"write --siz=4KiB", exitUsage, "did you mean --size or --src?"},
		{"status --soket x", exitUsage, "did you mean --socket?"},
		{"node --frobnicate", exitUsage, "unknown flag: --frobnicate\n"},
		{"node --x", exitUsage, "unknown flag: --x\n"},
		{"domain grnt", exitUsage, "did you mean grant?"},
		{"node --nope", exitUsage, "See exanetctl node --help."},
		{"node --sort nope", exitUsage, "no such column"},
		{"node --columns nothing", exitUsage, "no such column"},
		{"node --columns=", exitUsage, "want some of NODE,"},
		{"node --registers fpga", exitUsage, "mbox, all"},
		{"fault monitor -o csv", exitUsage, "lines of text or JSON"},
		{"bench methods --dir /dev/null/x --pfd /nope", exitFailed, "exanetctl: mkdir /dev/null"},
		{"perf serve", exitUsage, "want `exanetctl perf serve NAME`"},
		{"perf lat -D -1s", exitUsage, "--duration -1s: want more than 0"},
		{"perf lat -D 0s", exitUsage, "--duration 0s: want more than 0"},
		{"perf lat --probability 0.5", exitUsage, "give --absent"},
		{"capture --duration -1s", exitUsage, "more than 0"},
		{"unbind", exitUsage, "exanetctl: want the address"},
		{"qemu boot --guests 0", exitUsage, "0 guests: want 1 to 15"},
		{"qemu boot --nodes 0", exitUsage, "--nodes 0: want 1 to 4"},
		{"qemu boot --machine vax", exitUsage, "want x86, no-iommu or arm64"},
	} {
		code, _, errs := ctl(strings.Fields(c.line)...)
		if code != c.code || !strings.Contains(errs, c.text) || (errs == "") != (c.code == exitOK) {
			t.Errorf("%s: exit code %d, want %d; standard error %q, want %q", c.line, code, c.code, errs, c.text)
		}
	}
}

// A full disk is an error of every output, also of help.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, line := range []string{"", "--help", "help write", "node --help", "--version", "version", "completion bash"} {
		var errs bytes.Buffer
		code := run(t.Context(), strings.Fields(line), streams{in: strings.NewReader(""), out: full, err: &errs, getenv: os.Getenv})
		if code != exitFailed || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%q: exit code %d, %q", line, code, errs.String())
		}
	}
}

// write prints its JSON even if there is no daemon.
func TestWriteJSONWithoutDaemon(t *testing.T) {
	code, out, _ := ctl("write", "-o", "json", "--size", "20KiB", "--socket", filepath.Join(t.TempDir(), "none"))
	var r struct {
		Verified *bool   `json:"verified"`
		Failed   *int    `json:"failed"`
		Error    *string `json:"error"`
		Waiting  string  `json:"waiting"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if code != exitNoDaemon || r.Verified == nil || *r.Verified || r.Failed == nil || r.Error == nil || r.Waiting != "wait" {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// completion prints scripts for the three shells.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, errs := ctl("completion", shell)
		if code != exitOK || !strings.Contains(out, "exanetctl") {
			t.Errorf("%s: exit code %d, %s", shell, code, errs)
		}
	}
}

// isCommand returns an error if words are not a command line. It runs nothing.
func isCommand(words []string) error {
	root := newRoot(streams{in: &bytes.Buffer{}, out: &bytes.Buffer{}, err: &bytes.Buffer{}})
	cmd, rest, err := root.Find(words)
	switch {
	case err != nil:
		return err
	case cmd == root:
		return fmt.Errorf("no such command: %q", words)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

func TestIsCommand(t *testing.T) {
	for line, ok := range map[string]bool{"node show 1": true, "write --size 4KiB": true, "n": true, "frob": false, "write --frob": false, "node show 1 2": false} {
		if err := isCommand(strings.Fields(line)); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Every command line in the documents, in the text and in blocks, is valid with its flags.
func TestDocumentedCommands(t *testing.T) {
	inline := regexp.MustCompile("`(?:bin/)?exanetctl ([^`]+)`")
	typed := regexp.MustCompile(`^(?:\$ )?(?:sudo )?(?:bin/)?exanetctl ([^|;&>#]+)`)
	block := regexp.MustCompile("(?s)\n```(?:sh|console)\n(.*?)\n```")
	flags := regexp.MustCompile("(?m)^\\| `--([a-z]+)")
	names := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) < 20 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	for _, path := range docs {
		names = append(names, filepath.Join("docs", filepath.Base(path)))
	}
	found := 0
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, m[1])
		}
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			for line := range strings.Lines(strings.ReplaceAll(m[1], "\\\n", " ")) {
				if c := typed.FindStringSubmatch(line); c != nil {
					lines = append(lines, c[1])
				}
			}
		}
		for _, line := range lines {
			found++
			// A text may name a command without its arguments.
			if err := isCommand(strings.Fields(strings.TrimSuffix(line, " --help"))); err != nil && !strings.Contains(err.Error(), "an argument is missing") {
				t.Errorf("%s names exanetctl %s: %v", name, strings.TrimSpace(line), err)
			}
		}
		if name != "README.md" && name != "docs/exanetctl.md" {
			continue
		}
		_, help, _ := ctl("write", "--help")
		_, perf, _ := ctl("perf", "lat", "--help")
		help += perf
		for _, m := range flags.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(help, "--"+m[1]) {
				t.Errorf("%s names --%s, which neither write nor perf has", name, m[1])
			}
		}
	}
	if found < 60 {
		t.Errorf("only %d commands found", found)
	}
}

// qemu run exits with the exit code of the command in the guest. If the guest cannot start the
// command, it is 127, with an error.
func TestCommandExit(t *testing.T) {
	start := fmt.Errorf("guest 0: %w", agent.ErrStart)
	for _, c := range []struct {
		code     int
		err      error
		want     int
		reported bool
	}{
		{0, nil, exitOK, false}, {5, nil, 5, true}, {127, nil, 127, true}, {127, start, 127, false}, {0, agent.ErrGone, exitFailed, false},
	} {
		err := commandExit(c.code, c.err)
		if got := exitCode(err); got != c.want || errors.Is(err, errReported) != c.reported || c.err != nil && !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%d, %v: exit code %d, %v", c.code, c.err, got, err)
		}
	}
}

// A list whose restriction is not known, because pfd's status fails, is an error and not a list
// that claims to be complete.
func TestUnknownScope(t *testing.T) {
	answers := maps.Clone(fakeAnswers)
	delete(answers, control.PathStatus)
	d := startDaemon(t, answers)
	for _, line := range []string{"domain", "counter", "fault", "fault stages"} {
		for _, format := range []string{"table", "json"} {
			code, out, errs := ctl(append(strings.Fields(line), "--socket", d.socket, "-o", format)...)
			if code == exitOK || out != "" || !strings.Contains(errs, control.PathStatus) {
				t.Errorf("%s as %s: exit code %d, output %q, standard error %q", line, format, code, out, errs)
			}
		}
	}
}
