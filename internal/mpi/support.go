package mpi

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Layered is the provider that Open MPI uses: endpoints that need no connection, above ours.
const Layered = "exanet;ofi_rxm"

// Fabric returns mpirun's arguments for a provider of libfabric.
func Fabric(provider string) []string {
	return []string{"--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", provider}
}

// Need skips a test where programs or libfabric's headers are missing.
func Need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range append([]string{"gcc"}, programs...) {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed: make test installs it", p)
		}
	}
	if _, err := os.Stat("/usr/include/rdma/providers/fi_prov.h"); err != nil {
		t.Skip("libfabric-dev is not installed: make test installs it")
	}
}

// Provider builds libexanet and the provider into a directory, once. flags are the compiler's. The test is
// one of a package beside this one.
func Provider(t *testing.T, dir string, flags ...string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "libexanet-fi.so")); err == nil {
		return
	}
	for _, script := range []string{"libexanet.sh", "fi.sh"} {
		c := exec.CommandContext(t.Context(), "sh", filepath.Join("..", "..", "contrib", "scripts", script), dir)
		c.Env = append(os.Environ(), "CFLAGS="+strings.Join(flags, " "))
		Output(t, c)
	}
}

// Program builds an MPI program of this package's testdata into a directory, once, and returns its path.
func Program(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		source := filepath.Join("..", "mpi", "testdata", name+".c")
		Output(t, exec.CommandContext(t.Context(), "mpicc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o", path, source))
	}
	return path
}

// Thermo returns the lines of LAMMPS that the simulation determines.
func Thermo(t *testing.T, out string) string {
	t.Helper()
	_, rest, found := strings.Cut(out, "\nStep ")
	table, _, ends := strings.Cut(rest, "\nLoop time")
	if !found || !ends || strings.Count(table, "\n") < 11 {
		t.Fatalf("no table of LAMMPS:\n%s", out)
	}
	return table
}

// Output runs a command and returns what it printed.
func Output(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(c.Args, " "), err, out)
	}
	return string(out)
}

// ExitCode returns that of a program that has ended by itself.
func ExitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err == nil {
		return 0
	}
	if !errors.As(err, &exit) || !exit.Exited() {
		t.Fatal(err)
	}
	return exit.ExitCode()
}
