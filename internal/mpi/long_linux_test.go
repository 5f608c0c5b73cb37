package mpi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/procstatus"
)

// needLong skips a test that takes long, or needs programs that no other test does.
func needLong(t *testing.T, programs ...string) {
	t.Helper()
	if os.Getenv("PFD_MPI") == "" {
		t.Skip("takes long: make mpi runs it (PFD_MPI=1)")
	}
	Need(t, append(programs, "mpirun", "mpicc")...)
}

// longJob is a job of n ranks of the program testdata/long.c.
func longJob(t *testing.T, p *pfd, dir string, n int, args ...string) *exec.Cmd {
	t.Helper()
	job := mpirun(t, p, dir, n, append([]string{Program(t, dir, "long")}, args...)...)
	// Without it ofi_rxm 1.17 receives wrongly what MPI_Mprobe finds (docs/mpi.md).
	job.Env = append(job.Env, "FI_OFI_RXM_SAR_LIMIT=0")
	return job
}

// begun starts a job and waits until n processes are attached; the function that it returns waits
// for the job's end and returns what it printed.
func (p *pfd) begun(t *testing.T, job *exec.Cmd, n int) func() (string, error) {
	t.Helper()
	var said bytes.Buffer
	job.Stdout, job.Stderr = &said, &said
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- job.Wait() }()
	for p.attached(t) < n {
		select {
		case err := <-ended:
			t.Fatalf("the job has ended: %v\n%s", err, said.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return func() (string, error) {
		err := <-ended
		return said.String(), err
	}
}

// ranks returns the attached processes.
func (p *pfd) ranks(t *testing.T) (all []control.Domain) {
	t.Helper()
	s, err := p.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for node := range s.Nodes {
		list, err := p.client.Domains(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list...)
	}
	return all
}

const allRight = "long: all right\n"

func TestLongProgram(t *testing.T) {
	needLong(t)
	dir, p := provider(t), start(t)
	for _, c := range []struct {
		ranks int
		args  string
	}{{8, "alltoallv 100"}, {4, "threads 1000"}, {4, "sleep 5000"}, {2, "memory 64"}, {1, "messages 20000"}, {4, "messages 1000000"}} {
		t.Run(fmt.Sprint(c.ranks, " ", c.args), func(t *testing.T) {
			if out := Output(t, longJob(t, p, dir, c.ranks, strings.Fields(c.args)...)); out != allRight {
				t.Errorf("%s", out)
			}
			p.left(t)
		})
	}
}

// LAMMPS computes over the provider what it computes over shared memory, and no page is pinned.
func TestLongLAMMPS(t *testing.T) {
	needLong(t, "lmp")
	dir, p := provider(t), start(t)
	for _, ranks := range []int{1, 2, 4} { // Debian's LAMMPS has no threads (-sf omp)
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			input := []string{"lmp", "-in", "testdata/in.lj", "-log", "none"}
			end := p.begun(t, mpirun(t, p, dir, ranks, input...), ranks)
			seen := map[int]bool{}
			for list := p.ranks(t); len(list) > 0; list = p.ranks(t) {
				for _, d := range list {
					status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID))
					if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || bytes.Contains(status, []byte("State:\tZ")) {
						continue // it has ended
					}
					if n, err := procstatus.Bytes(status, "VmPin", "VmLck"); err == nil && n != 0 {
						t.Fatalf("%d bytes of process %d are pinned or locked", n, d.PID)
					} else if err == nil {
						seen[d.PID] = true
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
			out, err := end()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if len(seen) != ranks {
				t.Errorf("%d ranks were looked at", len(seen))
			}
			vader := command(t, p, dir, "", "mpirun", append([]string{"--mca", "pml", "ob1", "--mca", "btl", "vader,self", "-n", fmt.Sprint(ranks)}, input...)...)
			if got, want := Thermo(t, out), Thermo(t, Output(t, vader)); got != want {
				t.Errorf("over the provider\n%s\nover shared memory\n%s", got, want)
			}
		})
	}
}

func TestLongHPCC(t *testing.T) {
	needLong(t, "hpcc")
	dir, p, work := provider(t), start(t), t.TempDir()
	input, err := os.ReadFile("/usr/share/doc/hpcc/examples/_hpccinf.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "hpccinf.txt"), input, 0o644); err != nil {
		t.Fatal(err)
	}
	job := mpirun(t, p, dir, 4, "hpcc")
	job.Dir = work
	said := Output(t, job)
	out, err := os.ReadFile(filepath.Join(work, "hpccoutf.txt"))
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if !bytes.Contains(out, []byte("\nSuccess=1\n")) || !bytes.Contains(out, []byte("End of HPC Challenge tests.")) || bytes.Contains(out, []byte("FAILED ")) && !bytes.Contains(out, []byte("0 tests completed and failed residual checks")) {
		t.Errorf("%s", out)
	}
	for _, line := range regexp.MustCompile(`(?m)^(MaxPingPong|RandomlyOrderedRing|NaturallyOrderedRing).*$`).FindAll(out, -1) {
		t.Logf("%s", line)
	}
	p.left(t)
}

func TestLongNetPIPE(t *testing.T) {
	needLong(t, "NPopenmpi")
	dir, p := provider(t), start(t)
	for _, args := range [][]string{{"-u", "4194304"}, {"-u", "4194304", "-i"}} { // timed; every byte checked
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			job := mpirun(t, p, dir, 2, append([]string{"NPopenmpi", "-o", filepath.Join(t.TempDir(), "np.out")}, args...)...)
			out := Output(t, job)
			if !regexp.MustCompile(" (4194304|4194305|3145729) bytes").MatchString(out) || strings.Contains(out, "Integrity check failed") {
				t.Errorf("%s", out)
			}
			t.Logf("%s", out)
			p.left(t)
		})
	}
}

// memoryGroup makes a control group of memory, and returns its directory and whether that is of
// version 2.
func memoryGroup(t *testing.T) (group string, second bool) {
	t.Helper()
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil || bytes.Count(swaps, []byte("\n")) < 2 {
		t.Skip("the machine has no swap")
	}
	group = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(filepath.Join(group, "memory.force_empty")); err != nil {
		group, second = "/sys/fs/cgroup", true
	}
	if group, err = os.MkdirTemp(group, "exanet-mpi-"); err != nil {
		t.Skipf("no control group of memory: %v", err)
	}
	t.Cleanup(func() {
		for errors.Is(os.Remove(group), syscall.EBUSY) { // the kernel notices the last end a little later
			time.Sleep(10 * time.Millisecond)
		}
	})
	if _, err := os.Stat(filepath.Join(group, "memory.stat")); err != nil {
		t.Skipf("no control group of memory: %v", err)
	}
	return group, second
}

// inGroup makes a job start in a control group.
func inGroup(t *testing.T, job *exec.Cmd, group string) *exec.Cmd {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	job.Path = sh
	job.Args = append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, group}, job.Args...)
	return job
}

// Ranks whose memory the kernel reclaims all the time go on, from swap.
func TestLongReclaim(t *testing.T) {
	needLong(t)
	group, second := memoryGroup(t)
	file, amount := "memory.force_empty", "0"
	if second {
		file, amount = "memory.reclaim", "1G"
	}
	dir, p := provider(t), start(t)
	before := swappedOut(t)
	end := p.begun(t, inGroup(t, longJob(t, p, dir, 2, "memory", "24"), group), 2)
	for p.attached(t) > 0 {
		// An error says that less was reclaimable.
		_ = os.WriteFile(filepath.Join(group, file), []byte(amount), 0)
	}
	if out, err := end(); err != nil || out != allRight {
		t.Errorf("%v\n%s", err, out)
	}
	if swappedOut(t) == before {
		t.Error("nothing was swapped out")
	}
}

// Ranks that use some 216 MiB go on under a limit of 96 MiB, from swap (docs/mpi.md).
func TestLongLimit(t *testing.T) {
	needLong(t)
	group, second := memoryGroup(t)
	file := "memory.limit_in_bytes"
	if second {
		file = "memory.max"
	}
	if err := os.WriteFile(filepath.Join(group, file), []byte("96M"), 0); err != nil {
		t.Fatal(err)
	}
	dir, p := provider(t), start(t)
	before := swappedOut(t)
	if out := Output(t, inGroup(t, longJob(t, p, dir, 2, "memory", "32"), group)); out != allRight {
		t.Errorf("%s", out)
	}
	if swappedOut(t) == before {
		t.Error("nothing was swapped out")
	}
}

// swappedOut returns how many pages the machine has swapped out.
func swappedOut(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		t.Fatal(err)
	}
	return string(regexp.MustCompile(`(?m)^pswpout .*$`).Find(b))
}

func TestLongServerStopped(t *testing.T) {
	needLong(t)
	serverStopped(t, 30*time.Second)
}

// A buffer that is unmapped while it is received into, or may not be written, fails MPI_Recv, and
// ends no rank by a signal. Other jobs go on.
func TestLongRefused(t *testing.T) {
	needLong(t)
	dir, p := provider(t), start(t)
	for _, mode := range []string{"unmapped", "readonly"} {
		t.Run(mode, func(t *testing.T) {
			other := p.begun(t, longJob(t, p, dir, 2, "messages", "20000"), 2)
			out, err := longJob(t, p, dir, 2, mode).CombinedOutput()
			if ExitCode(t, err) != 3 || bytes.Contains(out, []byte("on signal")) {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := other(); err != nil || out != allRight {
				t.Errorf("the other job: %v\n%s", err, out)
			}
			p.left(t)
		})
	}
}

// A process of another user, which knows all numbers of a rank, reaches nothing of it.
func TestLongForger(t *testing.T) {
	needLong(t)
	if os.Getuid() != 0 {
		t.Skip("another user's process needs root")
	}
	dir, p, work := provider(t), start(t), t.TempDir()
	forge := filepath.Join(work, "forge")
	Output(t, exec.CommandContext(t.Context(), "gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", dir, "-o", forge, "testdata/forge.c", filepath.Join(dir, "libexanet.a"), "-pthread"))
	for _, d := range []string{filepath.Dir(work), filepath.Dir(filepath.Dir(p.client.Socket()))} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	job := longJob(t, p, dir, 2, "messages", "200000")
	job.Env = append(job.Env, "FI_EXANET_GROUP=ranks")
	end := p.begun(t, job, 2)
	rank := p.ranks(t)[0]
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", rank.PID))
	if err != nil {
		t.Fatal(err)
	}
	heap := regexp.MustCompile(`(?m)^([0-9a-f]+)-.*\[heap\]$`).FindSubmatch(maps)
	if heap == nil {
		t.Fatalf("no heap:\n%s", maps)
	}
	for _, uid := range []uint32{1000, 0} { // the ranks' own user is refused nothing
		c := exec.CommandContext(t.Context(), forge, p.client.Socket(), "ranks", fmt.Sprint(rank.Node), fmt.Sprint(rank.PDID),
			fmt.Sprint(rank.Generation), fmt.Sprint(rank.Interface), "0x"+string(heap[1]))
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.CombinedOutput()
		if refused := err == nil && string(out) == "forge: refused\n"; refused != (uid != 0) || uid == 0 && !bytes.HasPrefix(out, []byte("forge: connected")) {
			t.Errorf("user %d: %v: %s", uid, err, out)
		}
	}
	if out, err := end(); err != nil || out != allRight {
		t.Errorf("%v\n%s", err, out)
	}
}
