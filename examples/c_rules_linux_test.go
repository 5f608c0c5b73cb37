package examples

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// libexanet decides as package rdma does: the cases are those of its tests.
func TestRules(t *testing.T) {
	dir := public(t)
	library(t, dir)
	out, err := exec.CommandContext(t.Context(), compile(t, dir, filepath.Join("..", "testdata", "rules")), filepath.Join("..", "attach", "testdata", "rules.txt")).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
