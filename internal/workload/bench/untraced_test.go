package bench

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/exanet/pfd/trace/probe"
)

// TestUntraced builds the pfd that `make bench` compares with, in the same way. It has no
// probe point.
func TestUntraced(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "pfd")
	c := exec.CommandContext(t.Context(), "go", "build", "-overlay", "internal/workload/bench/testdata/untraced.json", "-o", exe, "./cmd/pfd")
	c.Dir = "../../.." // the overlay's paths
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p, err := probe.Find(f); !errors.Is(err, probe.ErrPoint) {
		t.Errorf("its point is %+v, %v", p, err)
	}
}
