package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/trace/probe"
)

// patience is met only where something hangs.
const patience = 2 * time.Minute

// inside says that this process is in the mount namespace of the tests.
const inside = "EXANET_TRACING_INSIDE"

var (
	bin     string // directory of the programs
	bpffs   string // where a bpffs is mounted
	refused string // why nothing can be traced here, "" it can
)

// TestMain goes into a mount namespace of its own and builds the programs once.
func TestMain(m *testing.M) {
	if trouble := os.Getenv(asTarget); trouble != "" {
		if err := serveTarget(trouble); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(inside) == "" && os.Geteuid() == 0 {
		os.Exit(reexec())
	}
	os.Exit(testMain(m))
}

// reexec runs the tests again in a mount namespace.
func reexec() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "a mount namespace:", err)
		return 1
	}
	return 0
}

func testMain(m *testing.M) int {
	if os.Geteuid() != 0 {
		refused = "loading eBPF programs needs root"
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "exanet-tracing-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin, bpffs = dir, filepath.Join(dir, "bpf")
	// Stripped, as a package has them.
	out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", dir+"/", "../../cmd/pfd", "../../cmd/exanetctl").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		os.Mkdir(bpffs, 0o700),
		unix.Mount("bpf", bpffs, "bpf", 0, ""),
	); err != nil {
		fmt.Fprintln(os.Stderr, "a bpffs:", err)
		return 1
	}
	defer unix.Unmount(bpffs, unix.MNT_DETACH)
	if notes, err := probe.On(probe.Start{Dir: filepath.Join(bpffs, "try"), Programs: []string{filepath.Join(bin, "pfd")}}); err != nil {
		refused = fmt.Sprintf("this kernel refuses the programs: %v %v", notes, err)
	} else if err := probe.Off(filepath.Join(bpffs, "try")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// rig is a pfd and a directory for its tracer.
type rig struct {
	t      *testing.T
	dir    string // of pins
	socket string
	// Of the next pfd: its file, where it is another, and what starts it.
	program string
	starter []string
	pfd     *exec.Cmd
	client  *control.Client
	before  map[string]float64
}

func newRig(t *testing.T, args ...string) *rig {
	t.Helper()
	if refused != "" {
		t.Skip(refused)
	}
	r := &rig{t: t, socket: filepath.Join(t.TempDir(), "pfd.sock"), dir: filepath.Join(bpffs, strings.ReplaceAll(t.Name(), "/", "_"))}
	t.Cleanup(func() {
		if err := probe.Off(r.dir); err != nil && !errors.Is(err, probe.ErrOff) {
			t.Error(err)
		}
	})
	r.start(args...)
	return r
}

func (r *rig) start(args ...string) {
	r.t.Helper()
	var said bytes.Buffer
	program := r.program
	if program == "" {
		program = filepath.Join(bin, "pfd")
	}
	words := append(append(r.starter[:len(r.starter):len(r.starter)], program), "--socket", r.socket, "--log-level", "warn")
	r.pfd = exec.Command(words[0], append(words[1:], args...)...)
	r.pfd.Stderr = &said
	if err := r.pfd.Start(); err != nil {
		r.t.Fatal(err)
	}
	pfd := r.pfd
	r.t.Cleanup(func() {
		_ = pfd.Process.Signal(unix.SIGTERM)
		_ = pfd.Wait()
		if r.t.Failed() {
			r.t.Logf("pfd said: %s", said.String())
		}
	})
	var err error
	if r.client, err = control.New(r.socket); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.client.Close)
	r.until("pfd answers", func() bool {
		_, err := r.client.Status(r.t.Context())
		return err == nil
	})
}

// until waits for something that comes by itself.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// ctl runs exanetctl.
func (r *rig) ctl(args ...string) string {
	r.t.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("exanetctl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (r *rig) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*patience)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "exanetctl"), append([]string{"--socket", r.socket}, args...)...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said.String())
	}
	return string(out), err
}

func (r *rig) on() {
	r.t.Helper()
	r.ctl("trace", "on", "--bpffs", r.dir)
	r.before = r.metrics()
}

// result is the output of exanetctl write -j.
type result struct {
	Transfers int     `json:"transfers"`
	Failed    int     `json:"failed"`
	Verified  bool    `json:"verified"`
	Latency   latency `json:"latency_us"`
}

type latency struct {
	P50 float64 `json:"p50"`
}

// write runs exanetctl write; where its transfers are to fail, that is no error.
func (r *rig) write(args ...string) result {
	r.t.Helper()
	out, err := r.try(append([]string{"write", "-j"}, args...)...)
	var res result
	if jerr := json.Unmarshal([]byte(out), &res); jerr != nil {
		r.t.Fatalf("exanetctl write %v: %v, %v\n%s", args, err, jerr, out)
	}
	return res
}

// metrics reads pfd's counters, over all nodes and labels.
func (r *rig) metrics() map[string]float64 {
	r.t.Helper()
	text, err := r.client.Metrics(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ = strings.Cut(name, "{")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			r.t.Fatalf("%s: %v", line, err)
		}
		all[name] += v
	}
	return all
}

// since returns by how much a counter of pfd has grown since on.
func (r *rig) since(name string) uint64 {
	r.t.Helper()
	v, ok := r.metrics()[name]
	if !ok {
		r.t.Fatalf("pfd has no counter %s", name)
	}
	return uint64(v - r.before[name])
}

func (r *rig) status() *probe.Status {
	r.t.Helper()
	m := r.maps()
	defer m.Close()
	s, err := m.Status()
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) maps() *probe.Maps {
	r.t.Helper()
	m, err := probe.Open(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// settled returns the counters once all faults of pfd are shown, or have had the time for it.
func (r *rig) settled(faults uint64) map[string]uint64 {
	r.t.Helper()
	var c map[string]uint64
	r.until(fmt.Sprintf("%d faults are shown", faults), func() bool {
		c = r.status().Counters
		return c["faults"] >= faults && c["refusals"] >= c["rapfs"]
	})
	return c
}
