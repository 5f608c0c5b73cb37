package scenario

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// planted is a defect of the machines: a block is acknowledged while it is being written.
var planted = struct{ file, old, new string }{"soc/pldma/access.go", "c.nacked || c.writing > 0 ||", "c.nacked ||"}

const failing = `seed = 3
topology = { kind = "torus", size = [2, 2, 1] }
costs = { access = "20us" }
firmware = { timeout = "500us", guard = "2ms", outstanding = 4, ids = 16 }
workload = [
  { kind = "random", count = 60, size = "1B", most = "60KiB", absent = 0.5, absent-source = 0.1 },
  { kind = "halo", size = "20KiB", count = 3, absent = 0.2 },
  { kind = "incast", from = "1-8", to = 0, size = "4KiB", read = true },
]
inject = [
  { what = "lose-data", probability = 0.02 },
  { what = "lose-ack", probability = 0.1 },
  { what = "duplicate", probability = 0.05 },
  { what = "delay", probability = 0.1, most = "100us" },
  { what = "evict", from = "300us", nodes = 2 },
]
`

// A violation is shrunk to at most 3 transfers and 2 injections, in a file that replays it. The machines
// with the defect are a program of their own.
func TestShrinkFindsTheCause(t *testing.T) {
	if os.Getenv("PFD_PLANTED") != "" {
		shrinkPlanted(t)
		return
	}
	if testing.Short() {
		t.Skip("builds a program of its own: not with -short")
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, planted.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), planted.old); n != 1 {
		t.Fatalf("%s contains the text of the defect %d times: update it", planted.file, n)
	}
	dir := t.TempDir()
	changed, overlay, program := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "planted")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), planted.old, planted.new, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, planted.file): changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-pgo=off", "-overlay", overlay, "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.CommandContext(t.Context(), program, "-test.run", "TestShrinkFindsTheCause$", "-test.v")
	run.Env = append(os.Environ(), "PFD_PLANTED=1")
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

func shrinkPlanted(t *testing.T) {
	f := parse(t, failing)
	before, err := f.Expand()
	if err != nil {
		t.Fatal(err)
	}
	small, violation, err := Shrink(t.Context(), f)
	if err != nil || small == nil {
		t.Fatalf("%v, %v", small, err)
	}
	text, err := small.Text()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d transfers are shrunk to\n%s%v", len(before), text, violation)
	if len(small.Workload) > 3 || len(small.Inject) > 2 {
		t.Errorf("%d transfers and %d injections are left", len(small.Workload), len(small.Inject))
	}
	again := parse(t, string(text))
	if _, err := Run(t.Context(), again, Options{}); !errors.Is(err, ErrViolation) || err.Error() != violation.Error() {
		t.Errorf("the file's violation is %v, want %v", err, violation)
	}
}

// A scenario that does not fail cannot be shrunk.
func TestNothingToShrink(t *testing.T) {
	small, violation, err := Shrink(t.Context(), parse(t, failing))
	if small != nil || violation != nil || err != nil {
		t.Errorf("%+v, %v, %v", small, violation, err)
	}
}
