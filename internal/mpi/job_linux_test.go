package mpi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Messages of every size and order, windows, and memory that is absent: every byte is checked.
func TestBytes(t *testing.T) {
	Need(t, "mpirun", "mpicc")
	dir, p := provider(t), start(t)
	program := Program(t, dir, "bytes")
	for _, c := range []struct {
		ranks          int
		messages, mode string
		set            string
	}{{1, "5000", "", ""}, {2, "50000", "", ""}, {4, "5000", "", ""}, {2, "1000", "threads", ""}, {2, "5000", "", "OMPI_MCA_osc=pt2pt"}, {2, "5000", "", "FI_OFI_RXM_USE_SRX=1"}, {2, "5000", "", "FI_OFI_RXM_USE_RNDV_WRITE=1"}} {
		t.Run(fmt.Sprintf("%d%s%s", c.ranks, c.mode, c.set), func(t *testing.T) {
			job := mpirun(t, p, dir, c.ranks, program, c.messages, c.mode)
			job.Env = append(job.Env, c.set)
			if out := Output(t, job); out != "bytes: all right\n" {
				t.Errorf("%s", out)
			}
			p.left(t)
		})
	}
}

// When a rank is killed the job ends, and nothing of it stays in pfd.
func TestRankKilled(t *testing.T) {
	Need(t, "mpirun", "mpicc")
	dir, p := provider(t), start(t)
	out, err := mpirun(t, p, dir, 3, Program(t, dir, "bytes"), "10000", "kill").CombinedOutput()
	if ExitCode(t, err) == 0 || !bytes.Contains(out, []byte("signal 9")) {
		t.Errorf("%v\n%s", err, out)
	}
	p.left(t)
}

// When pfd is killed the job ends, and no rank by a signal.
func TestServerKilled(t *testing.T) {
	Need(t, "mpirun", "mpicc")
	dir, p := provider(t), start(t)
	job := mpirun(t, p, dir, 2, Program(t, dir, "bytes"), "100000000")
	var said bytes.Buffer
	job.Stdout, job.Stderr = &said, &said
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	for p.attached(t) < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	p.end(syscall.SIGKILL)
	if err := job.Wait(); ExitCode(t, err) == 0 || strings.Contains(said.String(), "on signal") {
		t.Errorf("%v\n%s", err, said.String())
	}
}

// serverStopped stops pfd for a time, once before the ranks of a job connect, and once amid their
// messages. The job goes on.
func serverStopped(t *testing.T, d time.Duration) {
	dir, p := provider(t), start(t)
	for _, event := range []string{"bytes: ready\n", "bytes: amid\n"} {
		t.Run(event[len("bytes: "):len(event)-1], func(t *testing.T) {
			job := mpirun(t, p, dir, 2, Program(t, dir, "bytes"), "20000", "tell")
			var said bytes.Buffer
			job.Stderr = &said
			in, err := job.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := job.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := job.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(out)
			line, err := lines.ReadString('\n')
			if line != event && err == nil {
				_, _ = io.WriteString(in, "\n")
				line, err = lines.ReadString('\n')
			}
			if line != event {
				t.Fatalf("%q, %v: %s", line, err, said.String())
			}
			if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(in, "\n")
			time.Sleep(d) // the fault itself
			if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(lines)
			if err := errors.Join(err, job.Wait()); err != nil || !strings.HasSuffix(string(rest), "bytes: all right\n") {
				t.Errorf("%v\n%s%s", err, rest, said.String())
			}
			p.left(t)
		})
	}
}

// A connection and its handshake have no time limit that passes while pfd is stopped: 5 s is the
// longest of libexanet's.
func TestServerStopped(t *testing.T) {
	Need(t, "mpirun", "mpicc")
	serverStopped(t, 6*time.Second)
}

// Ranks and those that they start are in one group.
func TestSpawn(t *testing.T) {
	Need(t, "mpirun", "mpicc")
	dir, p := provider(t), start(t)
	if out := Output(t, mpirun(t, p, dir, 2, Program(t, dir, "spawn"))); out != "spawn: 43\n" {
		t.Errorf("%s", out)
	}
	p.left(t)
}

// LAMMPS, as Debian has it, computes over the provider what it computes over shared memory.
func TestLAMMPS(t *testing.T) {
	Need(t, "mpirun", "lmp")
	dir, p := provider(t), start(t)
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			input := []string{"lmp", "-in", "testdata/in.lj", "-log", "none"}
			got := Thermo(t, Output(t, mpirun(t, p, dir, ranks, input...)))
			vader := command(t, p, dir, "", "mpirun", append([]string{"--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
				"--mca", "pml", "ob1", "--mca", "btl", "vader,self", "-n", fmt.Sprint(ranks)}, input...)...)
			if want := Thermo(t, Output(t, vader)); got != want {
				t.Errorf("over the provider\n%s\nover shared memory\n%s", got, want)
			}
			p.left(t)
		})
	}
}
