package deploy

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/daemon/control"
)

// replayResult is the JSON output of exanetctl replay.
type replayResult struct {
	Error     *string           `json:"error"`
	Whole     bool              `json:"whole"`
	Nodes     int               `json:"nodes"`
	Firmware  string            `json:"firmware_options"`
	Records   uint64            `json:"records"`
	Confirmed uint64            `json:"confirmed"`
	Kinds     map[string]uint64 `json:"kinds"`
	Counters  []control.Counter `json:"counters"`
}

func replay(t *testing.T, file string) (r replayResult, code int, says string) {
	t.Helper()
	p := start(t, "exanetctl", "replay", file, "-j")
	code = p.wait()
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, p.out.String(), p.err.String())
	}
	return r, code, p.err.String()
}

// TestReplay records a pfd whose firmware has no optimization, during writes, reads, refusals
// and failures, and replays the recording.
func TestReplay(t *testing.T) {
	l := newPlace(t)
	socket, file := l.file("s"), l.file("rec")
	d := newDaemon(t, socket, start(t, "pfd", "--socket", socket, "--record", file, "--firmware-options", "none"))
	d.ready()
	d.good(3, "--size", "1MiB", "--dst", "absent", "--policy", "pa")
	d.good(2, "--size", "16385", "--src", "absent", "--dst", "absent", "--class", "urgent")
	for _, args := range [][]string{{"--size", "64KiB", "--src", "absent", "--count", "3"}, {"--parallel", "8", "--size", "4KiB,256KiB"}} {
		if p := d.read(args...); p.wait() != 0 {
			t.Fatalf("read %v: %s", args, p.err.String())
		}
	}
	// More answers to reads than a mailbox holds: pfd takes them out in time.
	if r, code := outcome(d.read("--size", "64", "--src", "unmapped", "--count", "70")); code != 1 || r.Failed != 70 {
		t.Fatalf("reads of nothing: exit code %d, %+v", code, r)
	}
	counters, err := d.Counters(t.Context(), control.AllNodes)
	if err != nil {
		t.Fatal(err)
	}
	d.signal(syscall.SIGTERM)
	d.wait()

	r, code, says := replay(t, file)
	if code != 0 || r.Error != nil || !r.Whole || r.Nodes != 2 || r.Firmware != "none" || r.Records == 0 || r.Confirmed != r.Records {
		t.Fatalf("exit code %d, %+v: %s", code, r, says)
	}
	for _, kind := range []string{"frame", "walk", "move", "doorbell", "message", "load", "store", "take"} {
		if r.Kinds[kind] == 0 {
			t.Errorf("no input of kind %s in %v", kind, r.Kinds)
		}
	}
	for _, c := range counters {
		if c.Name != "tx_blocks_total" && c.Name != "nacks_1_total" && c.Name != "rapf_rx_total" {
			continue
		}
		if c.Value > 0 && !slices.ContainsFunc(r.Counters, func(x control.Counter) bool { return x.Node == c.Node && x.Name == c.Name && x.Value == c.Value }) {
			t.Errorf("counter %s of node %d was %d: %+v", c.Name, c.Node, c.Value, r.Counters)
		}
	}
	p := start(t, "exanetctl", "replay", file, "--counters")
	if p.wait() != 0 || !strings.Contains(p.out.String(), "the same, to the bit") || !strings.Contains(p.out.String(), "tx_blocks_total") {
		t.Errorf("exit code %d: %s", p.wait(), p.out.String())
	}

	// Changed recordings, with the exit code and the error of each.
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(b []byte) []byte
		code   int
		text   string
	}{
		{"cut", func(b []byte) []byte { return b[:len(b)*2/3] }, 0, "truncated"},
		{"other options", func(b []byte) []byte { b[20] = 0; return b }, 1, "act otherwise"},
		{"other epoch", func(b []byte) []byte { b[16] ^= 1; return b }, 1, "act otherwise"},
		{"another version", func(b []byte) []byte { b[8] = 9; return b }, 1, "recording of another version"},
		{"no recording", func([]byte) []byte { return []byte("text") }, 1, "not a recording"},
	} {
		t.Run(c.name, func(t *testing.T) {
			other := l.file("other")
			if err := os.WriteFile(other, c.change(bytes.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			r, code, says := replay(t, other)
			if code != c.code || r.Whole || r.Error == nil || !strings.Contains(*r.Error, c.text) || code != 0 && !strings.Contains(says, c.text) {
				t.Errorf("exit code %d, %+v: %s", code, r, says)
			}
		})
	}
	if p := start(t, "exanetctl", "replay"); p.wait() != 2 {
		t.Errorf("without a file: exit code %d", p.wait())
	}
	if p := start(t, "exanetctl", "replay", l.file("none")); p.wait() != 1 || !strings.Contains(p.err.String(), "no such file") {
		t.Errorf("a missing file: exit code %d, %s", p.wait(), p.err.String())
	}
}

// completions is the output of write and read about transfers that ran at once.
type completions struct {
	Verified    bool `json:"verified"`
	Completions []struct {
		Transfer  int     `json:"transfer"`
		Size      uint64  `json:"size_bytes"`
		Class     string  `json:"class"`
		Done      bool    `json:"done"`
		LatencyUS float64 `json:"latency_us"`
	} `json:"completions"`
}

// TestClasses: transfers take the classes and sizes in turn, and the output has the order of
// completion. An urgent transfer that starts last, behind large ones, does not end last.
func TestClasses(t *testing.T) {
	l := newPlace(t)
	socket := l.file("s")
	d := newDaemon(t, socket, start(t, "pfd", "--socket", socket))
	d.ready()
	line := []string{"--parallel", "8", "--size", "4MiB,4MiB,4MiB,4KiB", "--class", "normal,normal,normal,urgent"}
	p := d.write(line...)
	var c completions
	if err := json.Unmarshal(p.waited(), &c); err != nil || p.wait() != 0 || !c.Verified || len(c.Completions) != 8 {
		t.Fatalf("exit code %d, %v: %s%s", p.wait(), err, p.out.String(), p.err.String())
	}
	seen := map[int]bool{}
	for place, x := range c.Completions {
		seen[x.Transfer] = true
		urgent := x.Transfer%4 == 3
		size, class := uint64(4<<20), "normal"
		if urgent {
			size, class = 4096, "urgent"
		}
		if x.Size != size || x.Class != class || !x.Done || x.LatencyUS <= 0 {
			t.Errorf("place %d: %+v", place, x)
		}
		if urgent && place == 7 {
			t.Errorf("the urgent transfer %d ends last", x.Transfer)
		}
	}
	if len(seen) != 8 {
		t.Errorf("transfers %v, want each of 8 once", seen)
	}

	// The output for people has one line for each, in that order.
	for _, verb := range []string{"write", "read"} {
		args := []string{"--socket", socket, verb, "--parallel", "3", "--size", "64KiB,4KiB"}
		if verb == "write" {
			args = append(args, "--class", "urgent")
		}
		p := start(t, "exanetctl", args...)
		out := string(p.waited())
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if p.wait() != 0 || len(lines) != 5 || strings.Join(strings.Fields(lines[0]), " ") != "PLACE TRANSFER SIZE CLASS LATENCY_US OUTCOME" ||
			strings.Fields(lines[1])[0] != "1" || strings.Fields(lines[3])[0] != "3" || !strings.Contains(lines[4], "every byte is right") ||
			strings.Count(out, "urgent") != map[string]int{"write": 3, "read": 0}[verb] {
			t.Errorf("%s: exit code %d:\n%s%s", verb, p.wait(), out, p.err.String())
		}
	}
	// A single transfer can be urgent, too; a read has a class only by its size.
	d.good(3, "--size", "64KiB", "--class", "urgent", "--dst", "absent")
	for _, c := range []struct {
		p    *process
		text string
	}{
		{d.read("--class", "urgent"), "a read request has no class"},
		{d.write("--class", "fast"), `--class "fast"`},
		{d.write("--parallel", "33"), "want 1 to 32"},
		{d.write("--size", "4KiB,8KiB"), "needs --parallel"},
	} {
		if c.p.wait() != 2 || !strings.Contains(c.p.err.String(), c.text) {
			t.Errorf("exit code %d, %s; want 2 and %s", c.p.wait(), c.p.err.String(), c.text)
		}
	}
}
