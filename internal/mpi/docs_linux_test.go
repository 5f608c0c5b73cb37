package mpi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands of docs/mpi.md run, but for the installation.
func TestDocument(t *testing.T) {
	Need(t, "mpirun", "lmp", "fi_info")
	text, err := os.ReadFile("../../docs/mpi.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\napt-get [^\n]*\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/mpi.md has no commands")
	}
	if err := pfdBuilt(); err != nil {
		t.Fatal(err)
	}
	dir, work := provider(t), t.TempDir()
	input, err := os.ReadFile("testdata/in.lj")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "in.lj"), input, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// The shell ends pfd, the last program that it has started, also if a command fails.
	c := exec.CommandContext(ctx, "sh", "-ec", "trap 'kill $! 2>/dev/null || :' EXIT\n"+string(block[1]))
	c.Dir = work
	c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "FI_PROVIDER_PATH="+dir,
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_plm=isolated")
	if out := Output(t, c); !strings.Contains(out, " on 2 procs for 100 steps with 4000 atoms") {
		t.Errorf("%s", out)
	}
}
