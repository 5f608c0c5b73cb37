package hosts

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/mpi"
	"github.com/exanet/pfd/internal/workload/bench"
)

// TestMPIBenchmarks measures the table of docs/benchmarks.md for jobs with a rank on each of two hosts, and writes it
// there if EXANET_DOCS names the directory.
func TestMPIBenchmarks(t *testing.T) {
	if os.Getenv("PFD_MPI_BENCH") == "" {
		t.Skip("takes minutes of an idle machine: make mpi-bench runs it (PFD_MPI_BENCH=all)")
	}
	const rounds = 3
	j := startJobs(t, "lmp", "mpicc")
	over := func(provider string, env ...string) func(...string) *process {
		return func(program ...string) *process {
			return j.mpirun(1, append(env, "FI_PROVIDER="+provider), slices.Concat(mpi.Fabric(provider), program)...)
		}
	}
	fabrics := []struct {
		name string
		run  func(program ...string) *process
	}{
		{"exanet", over(mpi.Layered, "FI_EXANET_GROUP="+group)},
		{"tcp;ofi_rxm", over("tcp;ofi_rxm")},
		{"btl tcp", func(program ...string) *process {
			return j.mpirun(1, nil, slices.Concat([]string{"--mca", "pml", "ob1", "--mca", "btl", "tcp,self"}, program)...)
		}},
	}
	program, small := mpi.Program(t, bin, "bench"), j.lammps(100)
	large := filepath.Join(j.tmp, "in.large")
	input, err := os.ReadFile(small[2])
	if err == nil {
		input = regexp.MustCompile(`block 0 [0-9]+ 0 [0-9]+ 0 [0-9]+`).ReplaceAll(input, []byte("block 0 20 0 20 0 20"))
		err = os.WriteFile(large, input, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	rows := []struct {
		name, format, pattern string
		args                  []string
	}{
		{"LAMMPS, LJ melt, 32,000 atoms, 100 steps, a rank on each host", "%.3f s", `Loop time of ([0-9.]+) `, []string{"lmp", "-in", large, "-log", "none"}},
		{"8 bytes, half a round trip", "%.1f us", `bench ([0-9.]+)`, []string{program, "pingpong", "1000", "8"}},
		{"1 MiB, half a round trip", "%.0f us", `bench ([0-9.]+)`, []string{program, "pingpong", "200", "1048576"}},
		{"1 MiB into a fresh buffer, and 1 byte back", "%.0f us", `bench ([0-9.]+)`, []string{program, "fresh", "100"}},
	}
	figures := map[string][]float64{}
	for range rounds {
		for _, r := range rows {
			for _, f := range fabrics {
				out := f.run(r.args...).ends()
				found := regexp.MustCompile(r.pattern).FindStringSubmatch(out)
				if found == nil {
					t.Fatalf("no %q in\n%s", r.pattern, out)
				}
				v, err := strconv.ParseFloat(found[1], 64)
				if err != nil {
					t.Fatal(err)
				}
				figures[f.name+r.name] = append(figures[f.name+r.name], v)
			}
		}
	}
	j.detached(j.hosts...)
	var b strings.Builder
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "Medians of %d interleaved rounds, %d processors, load average %s at the end.\n\n", rounds, runtime.NumCPU(), strings.Fields(string(load))[0])
	b.WriteString("| | exanet, TLS | tcp;ofi_rxm, plain | btl tcp, plain | exanet / tcp;ofi_rxm |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.name)
		of := map[string]float64{}
		for _, f := range fabrics {
			list := slices.Sorted(slices.Values(figures[f.name+r.name]))
			of[f.name] = list[len(list)/2]
			fmt.Fprintf(&b, " "+r.format+" |", of[f.name])
		}
		fmt.Fprintf(&b, " %.2f |\n", of["exanet"]/of["tcp;ofi_rxm"])
	}
	t.Log("\n" + b.String())
	if dir := os.Getenv("EXANET_DOCS"); dir != "" {
		if err := bench.Replace(filepath.Join(dir, "benchmarks.md"), "bench-mpi-hosts", b.String()); err != nil {
			t.Fatal(err)
		}
	}
}
