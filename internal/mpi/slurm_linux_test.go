package mpi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// A Slurm that is configured as contrib/slurm/README.md says runs LAMMPS over the provider, or over
// shared memory if the job asks for it. It drains a node without pfd, and frees the slots of what a
// job has left behind. testdata/slurm.sh does all of that.
func TestSlurm(t *testing.T) {
	Need(t, "lmp", "setpriv")
	if os.Getuid() != 0 {
		t.Skip("a Slurm of the test's own needs root")
	}
	for _, program := range []string{"ip", "munged", "slurmctld", "slurmd", "srun"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: CI=1 sh contrib/scripts/setup.sh test installs it", program)
		}
	}
	programs, work := t.TempDir(), t.TempDir()
	Output(t, exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", programs, "../../cmd/pfd", "../../cmd/exanetctl"))
	contrib, err := filepath.Abs("../../contrib/slurm")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, "sh", "testdata/slurm.sh", programs, provider(t), contrib, "testdata", work)
	c.Env = append(os.Environ(), "FI_PROVIDER_PATH=/run/fi")
	// Slurm ends with this thread if the test is killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out := Output(t, c)
	refused, rest, _ := strings.Cut(out, "== exanet\n")
	exanet, vader, found := strings.Cut(rest, "== vader\n")
	if !found || refused != "no pfd can be reached on /run/exanet/pfd.sock\n" {
		t.Fatalf("%s", out)
	}
	if got, want := Thermo(t, exanet), Thermo(t, vader); got != want {
		t.Errorf("over the provider\n%s\nover shared memory\n%s", got, want)
	}
	log, err := os.ReadFile(filepath.Join(work, "pfd.log"))
	if err != nil {
		t.Fatal(err)
	}
	// The ranks of the first job, and of no other one, and what the last one has left behind.
	ranks := regexp.MustCompile(`msg=attached .* uid=1 .* group=fi-slurm\.pmix\.2\.0 `).FindAll(log, -1)
	if all := strings.Count(string(log), "msg=attached "); len(ranks) != 2 || all != 4 {
		t.Errorf("%d processes were attached, %d of them ranks:\n%s", all, len(ranks), log)
	}
}
