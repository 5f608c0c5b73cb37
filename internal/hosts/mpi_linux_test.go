package hosts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/mpi"
	"github.com/exanet/pfd/internal/netns"
	"github.com/exanet/pfd/internal/procstatus"
)

// enter stands in for ssh: enter HOST COMMAND... runs a command on a host, whose environment and /run/exanet are its own.
// The variables stand for a package that is installed, and for settings of Open MPI.
const enter = `#!/bin/sh
case $1 in
%s*) echo "enter: no host $1" >&2; exit 255 ;;
esac
name=$1
shift
exec env -i PATH="$PATH" HOME="$HOME" FI_PROVIDER_PATH=%s OMPI_MCA_plm_rsh_agent=%s OMPI_MCA_orte_tmpdir_base=%s \
	OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_hwloc_base_binding_policy=none \
	nsenter --target "$pid" --net unshare --uts --mount sh -c '
		hostname "$1" && mount -t tmpfs none /run && mkdir /run/exanet && mount --bind "$2" /run/exanet && shift 2 &&
			exec sh -c "$*"' enter "$name" "$run" "$@"
`

// jobs are MPI programs with ranks on each of two hosts.
type jobs struct {
	*cluster
	enter, tmp string
}

// address returns that of a host's cable to the other host.
func address(i int) string { return fmt.Sprintf("10.77.1.%d", i+1) }

// startJobs starts two hosts for jobs. Open MPI takes no addresses of lo, so that the cables have some of their own.
func startJobs(t *testing.T, programs ...string) *jobs {
	t.Helper()
	mpi.Need(t, slices.Concat(programs, []string{"mpirun", "nsenter", "unshare"})...)
	if os.Getuid() != 0 {
		t.Skip("entering the namespaces of a host needs root")
	}
	c := start(t, 2, 1)
	work, provider := t.TempDir(), filepath.Join(bin, "provider")
	j := &jobs{cluster: c, enter: filepath.Join(work, "enter"), tmp: filepath.Join(work, "tmp")}
	mpi.Provider(t, provider)
	var cases strings.Builder
	for i, h := range c.hosts {
		if err := h.machine.Run("ip", "addr", "add", address(i)+"/24", "dev", netns.Cable(1-i)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&cases, "%s) pid=%d run=%s ;;\n", h.name, h.hostd.cmd.Process.Pid, filepath.Dir(h.socket))
	}
	if err := os.Mkdir(j.tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.enter, fmt.Appendf(nil, enter, &cases, provider, j.enter, j.tmp), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.left)
	return j
}

// on starts a shell's command on a host.
func (j *jobs) on(host, line string) *process {
	j.Helper()
	c := exec.Command(j.enter, host, line)
	c.Dir = j.tmp
	return run(j.T, c, c.Start)
}

// quoted returns words as a shell takes them.
func quoted(words ...string) string { return "'" + strings.Join(words, "' '") + "'" }

// mpirun starts a job with n ranks on each host, from the first one. env is set for the ranks.
func (j *jobs) mpirun(n int, env []string, args ...string) *process {
	j.Helper()
	words := []string{"mpirun", "--host", fmt.Sprintf("a:%d,b:%[1]d", n), "-n", fmt.Sprint(2 * n)}
	for _, e := range env {
		words = append(words, "-x", e)
	}
	return j.on("a", "exec "+quoted(slices.Concat(words, args)...))
}

// exanet starts a job over the provider.
func (j *jobs) exanet(n int, program ...string) *process {
	j.Helper()
	return j.mpirun(n, []string{"FI_PROVIDER=" + mpi.Layered, "FI_EXANET_GROUP=" + group}, slices.Concat(mpi.Fabric(mpi.Layered), program)...)
}

// ends waits for a job and returns what it printed.
func (p *process) ends() string {
	p.t.Helper()
	<-p.done
	if p.err != nil {
		p.t.Fatalf("%v\n%s", p.err, p.out.String())
	}
	return p.out.String()
}

// ranks returns the processes that are attached to a host.
func (h *host) ranks() []control.Domain {
	h.t.Helper()
	list, err := h.client.Domains(h.t.Context(), control.AllNodes)
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// programs returns the processes in a host's network, but for exanet-hostd.
func (h *host) programs() (list []string) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", h.hostd.cmd.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range dirs {
		ns, err := os.Readlink(dir + "/ns/net")
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if err == nil && ns == own && pid != h.hostd.cmd.Process.Pid && pid != os.Getpid() {
			name, _ := os.ReadFile(dir + "/cmdline")
			list = append(list, fmt.Sprintf("%d %q", pid, name))
		}
	}
	return list
}

// left waits until nothing of a job is left on the hosts.
func (j *jobs) left() {
	for _, h := range j.hosts {
		var list []string
		wait(j.T, "the programs of a job have ended", func() bool { list = h.programs(); return len(list) == 0 })
	}
}

// detached waits until pfds have no rank.
func (j *jobs) detached(hosts ...*host) {
	j.Helper()
	for _, h := range hosts {
		h.wait("no rank is attached", func() bool { return len(h.ranks()) == 0 })
	}
}

// pinned fails the test if memory of a rank is pinned or locked, and returns the ranks that it has seen.
func (j *jobs) pinned() []int {
	j.Helper()
	var seen []int
	for _, h := range j.hosts {
		for _, d := range h.ranks() {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID))
			if err != nil {
				continue // it has ended
			}
			if n, err := procstatus.Bytes(status, "VmPin", "VmLck"); err == nil && n != 0 {
				j.Fatalf("%d bytes of process %d are pinned or locked", n, d.PID)
			} else if err == nil {
				seen = append(seen, d.PID)
			}
		}
	}
	return seen
}

// lammps returns the command of LAMMPS for a number of steps.
func (j *jobs) lammps(steps int) []string {
	j.Helper()
	text, err := os.ReadFile("../mpi/testdata/in.lj")
	if err != nil {
		j.Fatal(err)
	}
	input := filepath.Join(j.tmp, "in.lj")
	if err := os.WriteFile(input, bytes.Replace(text, []byte("run\t\t100\n"), fmt.Appendf(nil, "run\t\t%d\n", steps), 1), 0o644); err != nil {
		j.Fatal(err)
	}
	return []string{"lmp", "-in", input, "-log", "none"}
}

// vader returns what LAMMPS computes with n ranks on one machine, over shared memory. The ranks give their processors to
// others while they wait.
func (j *jobs) vader(n int, lammps []string) string {
	j.Helper()
	c := exec.CommandContext(j.Context(), "mpirun", slices.Concat([]string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
		"--mca", "plm", "isolated", "--mca", "pml", "ob1", "--mca", "btl", "vader,self", "-n", fmt.Sprint(n)}, lammps)...)
	return mpi.Thermo(j.T, mpi.Output(j.T, c))
}

// amid waits until a job's ranks have exchanged some bytes.
func (j *jobs) amid(p *process) {
	j.Helper()
	before := j.hosts[0].link("b").BytesReceived
	wait(j.T, "the ranks exchange bytes", func() bool {
		select {
		case <-p.done:
			j.Fatalf("the job has ended: %v\n%s", p.err, p.out.String())
		default:
		}
		return j.hosts[0].link("b").BytesReceived > before+1<<18
	})
}

// bytes runs the program that checks every byte of its messages and windows. Debian's Open MPI leaves out the component
// for windows that all transports have, so that windows of one machine are shared memory, and those of several fail.
func (j *jobs) bytes(n, messages int) {
	j.Helper()
	if out := j.exanet(n, "--mca", "osc", "pt2pt", mpi.Program(j.T, bin, "bytes"), fmt.Sprint(messages)).ends(); !strings.HasSuffix(out, "bytes: all right\n") { // mpirun may warn before
		j.Errorf("%s", out)
	}
}

// document returns the commands of docs/mpi.md for several machines.
func (j *jobs) document() string {
	j.Helper()
	text, err := os.ReadFile("../../docs/mpi.md")
	if err != nil {
		j.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Ranks on several machines\n")
	_, block, _ := strings.Cut(section, "\n```sh\n")
	block, _, found := strings.Cut(block, "```\n")
	if !found {
		j.Fatal("docs/mpi.md has no commands for several machines")
	}
	return strings.NewReplacer("FI_EXANET_GROUP=default", "FI_EXANET_GROUP="+group, "\nmpirun", "\nexec mpirun").Replace(block)
}

// Debian's LAMMPS, as docs/mpi.md starts it, and a program that checks every byte, with a rank on each of two hosts.
// LAMMPS computes what it computes with both ranks on one machine, over shared memory, and nothing is pinned.
func TestMPI(t *testing.T) {
	j := startJobs(t, "lmp", "mpicc")
	lammps := j.lammps(100)
	p := j.on("a", j.document())
	seen := map[int]bool{}
	for alive := true; alive; {
		select {
		case <-p.done:
			alive = false
		case <-time.After(5 * time.Millisecond):
			for _, pid := range j.pinned() {
				seen[pid] = true
			}
		}
	}
	got := mpi.Thermo(t, p.ends())
	if len(seen) != 2 {
		t.Errorf("%d ranks were looked at", len(seen))
	}
	if want := j.vader(2, lammps); got != want {
		t.Errorf("over two hosts\n%s\nover shared memory\n%s", got, want)
	}
	for i, h := range j.hosts {
		if l := h.link(names[1-i]); l.BytesReceived < 1<<20 {
			t.Errorf("%s has received %d bytes", h.name, l.BytesReceived)
		}
	}
	messages := 10_000
	if isLong() {
		messages = 100_000
	}
	j.bytes(1, messages)
	j.detached(j.hosts...)
}

// needLong skips a test that runs only in make hosts.
func needLong(t *testing.T) {
	t.Helper()
	if !isLong() {
		t.Skip("takes long: make hosts runs it (PFD_HOSTS=1)")
	}
}

// Two ranks on each of two hosts, of which each has a neighbour on its own host and one on the other.
func TestMPIFourRanks(t *testing.T) {
	needLong(t)
	j := startJobs(t, "lmp", "mpicc")
	lammps := j.lammps(100)
	if got, want := mpi.Thermo(t, j.exanet(2, lammps...).ends()), j.vader(4, lammps); got != want {
		t.Errorf("over two hosts\n%s\nover shared memory\n%s", got, want)
	}
	j.bytes(2, 10_000)
	j.detached(j.hosts...)
}

// A cable that is cut for a second, again and again, changes nothing of what LAMMPS computes.
func TestMPICable(t *testing.T) {
	needLong(t)
	j := startJobs(t, "lmp")
	lammps := j.lammps(1000)
	p := j.exanet(1, lammps...)
	for range 3 {
		j.amid(p)
		if err := j.mesh.Cut(0, 1); err != nil {
			t.Fatal(err)
		}
		wait(t, "the cut is noticed", func() bool { return j.hosts[0].link("b").State != control.HostUp })
		time.Sleep(time.Second) // the fault itself
		select {
		case <-p.done:
			t.Fatalf("the job has ended while its cable is cut: %v\n%s", p.err, p.out.String())
		default:
		}
		if err := j.mesh.Repair(0, 1); err != nil {
			t.Fatal(err)
		}
		j.up()
	}
	if got, want := mpi.Thermo(t, p.ends()), j.vader(2, lammps); got != want {
		t.Errorf("over a cable that was cut\n%s\nover shared memory\n%s", got, want)
	}
	j.detached(j.hosts...)
}

// When a rank is killed the job ends on both hosts, and mpirun says so.
func TestMPIRankKilled(t *testing.T) {
	needLong(t)
	j := startJobs(t, "mpicc")
	p := j.exanet(1, mpi.Program(t, bin, "bytes"), "10000", "kill")
	<-p.done
	if mpi.ExitCode(t, p.err) == 0 || !strings.Contains(p.out.String(), "signal 9") {
		t.Errorf("%v\n%s", p.err, p.out.String())
	}
	j.detached(j.hosts...)
}

// When the pfd of one host is killed the job ends on both. ofi_rxm of libfabric 1.17 may then end a rank by SIGSEGV
// (docs/mpi.md), and mpirun says so.
func TestMPIServerKilled(t *testing.T) {
	needLong(t)
	j := startJobs(t, "mpicc")
	p := j.exanet(1, mpi.Program(t, bin, "bytes"), "100000000")
	j.amid(p)
	j.hosts[1].pfd.end(syscall.SIGKILL)
	<-p.done
	if mpi.ExitCode(t, p.err) == 0 || !strings.Contains(p.out.String(), "MPI_ERR") && !strings.Contains(p.out.String(), "on signal 11") {
		t.Errorf("%v\n%s", p.err, p.out.String())
	}
	j.detached(j.hosts[0])
}

// fi_pingpong between two hosts, over the provider itself and below ofi_rxm.
func TestMPIPingpong(t *testing.T) {
	needLong(t)
	j := startJobs(t, "fi_pingpong")
	for _, c := range []struct{ provider, kind string }{{"exanet", "msg"}, {mpi.Layered, "rdm"}} {
		t.Run(c.kind, func(t *testing.T) {
			side := func(host, args string) *process {
				return j.on(host, "FI_EXANET_GROUP="+group+" exec "+quoted("fi_pingpong", "-p", c.provider, "-e", c.kind, "-c", "-I", "20", "-S", "all")+args)
			}
			server := side("b", "")
			wait(t, "fi_pingpong listens", func() bool {
				tcp, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", j.hosts[1].hostd.cmd.Process.Pid))
				return err == nil && bytes.Contains(tcp, []byte(":B9E8 00000000:0000 0A")) // 47592, its port
			})
			if out := side("a", " "+address(1)).ends(); !strings.Contains(out, "\n1m ") {
				t.Errorf("no messages of 1 MiB:\n%s", out)
			}
			server.ends()
			j.detached(j.hosts...)
		})
	}
}
