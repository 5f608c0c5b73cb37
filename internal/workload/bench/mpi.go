package bench

import (
	"bytes"
	"context"
	_ "embed" // fetchOp
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fetchOp is a program that measures MPI_Fetch_and_op between two ranks.
//
//go:embed testdata/fetchop.c
var fetchOp []byte

// mpiTime bounds one job. Defined by this project.
const mpiTime = time.Minute

// mpiWays are the ways that Open MPI 4.1 has between two ranks of one machine: by the messages of libfabric, as
// to another machine, and by memory that both ranks map.
var mpiWays = []struct {
	column string
	args   []string
}{
	{"MPI, tcp;ofi_rxm", []string{"--mca", "osc", "pt2pt", "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "tcp;ofi_rxm"}},
	{"MPI, one machine", []string{"--mca", "osc", "sm", "--mca", "pml", "ob1", "--mca", "btl", "vader,self"}},
}

// mpi returns the cases of MPI_Fetch_and_op in a row of a table, none if Open MPI is not installed. A job runs in
// its turn alone, since its ranks poll.
func (r *run) mpi(t *Table, row string) (turns []*turn, done func() error, err error) {
	done = func() error { return nil }
	const remedy = "apt-get install libopenmpi-dev"
	if !r.installed(t, row, mpiWays[0].column, "mpicc", remedy) {
		return nil, done, nil
	}
	dir, err := os.MkdirTemp("", "exanet-mpi-")
	if err != nil {
		return nil, done, err
	}
	done = func() error { return os.RemoveAll(dir) }
	program := filepath.Join(dir, "fetchop")
	compiler := exec.CommandContext(r.ctx, "mpicc", "-O2", "-o", program, "-x", "c", "-")
	compiler.Stdin = bytes.NewReader(fetchOp)
	if out, err := compiler.CombinedOutput(); err != nil {
		return nil, done, fmt.Errorf("compiling a program for MPI: %w\n%s", err, out)
	}
	for _, way := range mpiWays {
		c := t.cell(row, way.column)
		turns = append(turns, &turn{count: max(r.Count/250, 1), do: func(add func(*Cell, ...float64)) error {
			samples, err := mpirun(r.ctx, dir, append(way.args, "-n", "2", program, fmt.Sprint(2*operationRow))...)
			add(c, samples...)
			return err
		}})
	}
	return turns, done, nil
}

// mpirun runs a job of two ranks, and returns the microseconds that it prints.
func mpirun(ctx context.Context, dir string, args ...string) (samples []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, mpiTime)
	defer cancel()
	c := exec.CommandContext(ctx, "mpirun", args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // mpirun ends its ranks
	c.WaitDelay = helperGrace
	// More ranks than processors, no other machine, and also as root: nothing of a user's is run.
	c.Env = append(os.Environ(), "TMPDIR="+dir, "FI_PROVIDER=tcp;ofi_rxm", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
		"OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_plm=isolated")
	var said strings.Builder
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("mpirun: %w\n%s", errors.Join(err, ctx.Err()), said.String())
	}
	for line := range strings.Lines(string(out)) {
		ns, err := strconv.ParseUint(strings.TrimSpace(line), 10, 63)
		if err != nil {
			return nil, fmt.Errorf("mpirun prints %q", line)
		}
		samples = append(samples, float64(ns)/1e3)
	}
	return samples, nil
}
