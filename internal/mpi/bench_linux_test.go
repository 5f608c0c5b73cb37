package mpi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/internal/workload/bench"
)

// rounds is how often each figure is measured; the median counts.
const rounds = 3

// fabrics lists what Open MPI can use between the ranks of one machine.
var fabrics = []struct {
	name      string
	providers string // of libfabric
	args      []string
}{
	{"exanet", Layered, Fabric(Layered)},
	{"tcp;ofi_rxm", "tcp;ofi_rxm", Fabric("tcp;ofi_rxm")},
	{"btl tcp", "", []string{"--mca", "pml", "ob1", "--mca", "btl", "tcp,self"}},
	{"vader", "", []string{"--mca", "pml", "ob1", "--mca", "btl", "vader,self"}},
}

// meter measures the figures of one table.
type meter struct {
	*testing.T
	p       *pfd
	dir     string // of the provider
	figures map[string][]float64
}

// job is a job over a fabric. env is added to its environment.
func (m *meter) job(fabric, ranks int, env []string, program ...string) *exec.Cmd {
	f := fabrics[fabric]
	c := command(m.T, m.p, m.dir, f.providers, "mpirun", slices.Concat(f.args, []string{"-n", fmt.Sprint(ranks)}, program)...)
	c.Env = append(c.Env, env...)
	return c
}

// run runs a job and returns what it printed.
func (m *meter) run(fabric, ranks int, env []string, program ...string) string {
	return Output(m.T, m.job(fabric, ranks, env, program...))
}

// faults runs a job over exanet and returns how many pages of its ranks the network has found absent. It
// fails if a page is pinned or locked.
func (m *meter) faults(ranks int, program ...string) (n uint64) {
	end := m.p.begun(m.T, m.job(0, ranks, nil, program...), ranks)
	of := map[int]uint64{}
	for list := m.p.ranks(m.T); len(list) > 0; list = m.p.ranks(m.T) {
		for _, d := range list {
			of[d.PID] = d.Faults
			if d.PinnedBytes > 0 {
				m.Fatalf("%d bytes of process %d are pinned or locked", d.PinnedBytes, d.PID)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if out, err := end(); err != nil {
		m.Fatalf("%v\n%s", err, out)
	}
	for _, faults := range of {
		n += faults
	}
	return n
}

// touched is the environment of a program that has all its memory before it uses it.
func (m *meter) touched() string { return "LD_PRELOAD=" + filepath.Join(bin, "touched.so") }

// add records the numbers that a pattern finds in out, by names.
func (m *meter) add(out, pattern string, names ...string) {
	m.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(out)
	if len(found) != len(names)+1 {
		m.Fatalf("no %q in\n%s", pattern, out)
	}
	for i, name := range names {
		v, err := strconv.ParseFloat(found[i+1], 64)
		if err != nil {
			m.Fatal(err)
		}
		m.figures[name] = append(m.figures[name], v)
	}
}

// median returns the median of a figure.
func (m *meter) median(name string) float64 {
	m.Helper()
	list := slices.Sorted(slices.Values(m.figures[name]))
	if len(list) == 0 {
		m.Fatalf("%s was not measured", name)
	}
	return list[len(list)/2]
}

// each returns a row of a figure for every fabric.
func (m *meter) each(name, format string, scale float64, what, goal string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", what)
	for _, f := range fabrics {
		fmt.Fprintf(&b, " "+format+" |", m.median(f.name+name)*scale)
	}
	return fmt.Sprintf("%s %.2f | %s |\n", b.String(), m.median("exanet"+name)/m.median("tcp;ofi_rxm"+name), goal)
}

// TestBenchmarks measures the table of docs/benchmarks.md and writes it there if EXANET_DOCS names
// the directory. PFD_MPI_BENCH=all includes hpcc, which takes longer than the rest.
func TestBenchmarks(t *testing.T) {
	if os.Getenv("PFD_MPI_BENCH") == "" {
		t.Skip("takes some minutes of an idle machine: make mpi-bench runs it (PFD_MPI_BENCH=all)")
	}
	Need(t, "mpirun", "mpicc", "lmp", "NPopenmpi")
	m := &meter{T: t, dir: provider(t), p: start(t), figures: map[string][]float64{}}
	program := Program(t, bin, "bench")
	Output(t, exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(bin, "touched.so"), "testdata/touched.c"))
	small, err := os.ReadFile("testdata/in.lj")
	if err != nil {
		t.Fatal(err)
	}
	input := filepath.Join(bin, "in.lj")
	large := regexp.MustCompile(`block 0 [0-9]+ 0 [0-9]+ 0 [0-9]+`).ReplaceAll(small, []byte("block 0 20 0 20 0 20")) // 32,000 atoms
	if err := os.WriteFile(input, large, 0o644); err != nil {
		t.Fatal(err)
	}
	lammps := []string{"lmp", "-in", input, "-log", "none"}
	const loop = `Loop time of ([0-9.]+) `
	for range rounds {
		for _, ranks := range []int{1, 2, 4} {
			for i, f := range fabrics {
				m.add(m.run(i, ranks, nil, lammps...), loop, fmt.Sprint(f.name, "lammps", ranks))
			}
			m.add(m.run(0, ranks, []string{m.touched()}, lammps...), loop, fmt.Sprint("touched", ranks))
		}
		for i, f := range fabrics {
			for size, n := range map[string]string{"8": "20000", "1048576": "300"} {
				out := m.run(i, 2, nil, "NPopenmpi", "-o", filepath.Join(bin, "np.out"), "-l", size, "-u", size, "-p", "0", "-n", n)
				m.add(out, `([0-9.]+) Mbps in +([0-9.]+) usec`, f.name+"rate"+size, f.name+"time"+size)
			}
			m.add(m.run(i, 2, nil, program, "fresh", "100"), `bench ([0-9.]+) ([0-9.]+)`, f.name+"first", f.name+"second")
		}
		m.add(m.run(0, 4, nil, program, "resident", "32"), `bench ([0-9]+) ([0-9]+)`, "resident", "buffers")
	}
	for _, ranks := range []int{1, 2, 4} {
		m.figures[fmt.Sprint("faults", ranks)] = []float64{float64(m.faults(ranks, lammps...))}
	}
	if os.Getenv("PFD_MPI_BENCH") == "all" {
		m.hpcc()
	}
	text := m.table()
	t.Log("\n" + text)
	if dir := os.Getenv("EXANET_DOCS"); dir != "" {
		if err := bench.Replace(filepath.Join(dir, "benchmarks.md"), "bench-mpi", text); err != nil {
			t.Fatal(err)
		}
	}
}

// hpcc measures the bandwidths of HPC Challenge, with reads into the programs' own memory and with
// copies through the rings of streams.
func (m *meter) hpcc() {
	if _, err := exec.LookPath("hpcc"); err != nil {
		m.Log("hpcc is not installed: its rows are missing")
		return
	}
	input, err := os.ReadFile("/usr/share/doc/hpcc/examples/_hpccinf.txt")
	if err != nil {
		m.Fatal(err)
	}
	for way, limit := range map[string]string{"read": "0", "copied": "1073741824"} {
		work := m.TempDir()
		if err := os.WriteFile(filepath.Join(work, "hpccinf.txt"), input, 0o644); err != nil {
			m.Fatal(err)
		}
		m.run(0, 4, []string{"FI_OFI_RXM_SAR_LIMIT=" + limit}, "sh", "-c", "cd "+work+" && exec hpcc")
		out, err := os.ReadFile(filepath.Join(work, "hpccoutf.txt"))
		if err != nil {
			m.Fatal(err)
		}
		m.add(string(out), `\nAvgPingPongBandwidth_GBytes=([0-9.]+)\n`, way+"pingpong")
		m.add(string(out), `\nNaturallyOrderedRingBandwidth_GBytes=([0-9.]+)\n`, way+"ring")
	}
}

func (m *meter) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Medians of %d interleaved rounds, two processors, pfd of the same user beside the ranks.\n\n", rounds)
	b.WriteString("| | exanet | tcp;ofi_rxm | btl tcp | vader | exanet / tcp;ofi_rxm | goal |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, ranks := range []int{1, 2, 4} {
		goal := "at most 1.15"
		if ranks == 1 {
			goal = ""
		}
		b.WriteString(m.each(fmt.Sprint("lammps", ranks), "%.3f s", 1, fmt.Sprintf("LAMMPS, LJ melt, 32,000 atoms, 100 steps, ranks: %d", ranks), goal))
	}
	b.WriteString(m.each("time8", "%.1f us", 1, "NPopenmpi, 8 bytes, half a round trip", "at most 0.5"))
	b.WriteString(m.each("time1048576", "%.0f us", 1, "NPopenmpi, 1 MiB, half a round trip", "at most 1.25"))
	b.WriteString(m.each("first", "%.0f us", 1, "1 MiB into a fresh buffer, and 1 byte back", ""))
	b.WriteString(m.each("second", "%.0f us", 1, "1 MiB into the same once more, and 1 byte back", ""))
	b.WriteString("\n| exanet | | goal |\n| --- | --- | --- |\n")
	for _, ranks := range []int{1, 2, 4} {
		fmt.Fprintf(&b, "| LAMMPS with faults / all touched before, ranks: %d | %.3f / %.3f s = %.4f; %.0f faults of the network | at most 1.01 |\n", ranks,
			m.median(fmt.Sprint("exanetlammps", ranks)), m.median(fmt.Sprint("touched", ranks)),
			m.median(fmt.Sprint("exanetlammps", ranks))/m.median(fmt.Sprint("touched", ranks)), m.median(fmt.Sprint("faults", ranks)))
	}
	fmt.Fprintf(&b, "| 1 MiB into a fresh buffer / into the same once more | %.2f | at most 1.4 |\n", m.median("exanetfirst")/m.median("exanetsecond"))
	fmt.Fprintf(&b, "| 4 ranks, MPI_Alltoall over fresh buffers: resident / what a registration cache would pin | %.1f / %.1f MiB = 1 / %.0f; pinned 0 | report |\n",
		m.median("resident")/(1<<20), m.median("buffers")/(1<<20), m.median("buffers")/m.median("resident"))
	if len(m.figures["readring"]) > 0 {
		fmt.Fprintf(&b, "| hpcc, 4 ranks, ping-pong: read from the sender's memory / copied | %.2f / %.2f GB/s = %.2f | at least 1.3 |\n",
			m.median("readpingpong"), m.median("copiedpingpong"), m.median("readpingpong")/m.median("copiedpingpong"))
		fmt.Fprintf(&b, "| hpcc, 4 ranks, ring | %.2f / %.2f GB/s = %.2f | at least 1.3 |\n",
			m.median("readring"), m.median("copiedring"), m.median("readring")/m.median("copiedring"))
	}
	return b.String()
}
