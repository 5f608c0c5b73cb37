package guests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/exanet/pfd/qemu"
	"github.com/exanet/pfd/qemu/agent"
)

// patience is met only where something hangs.
const patience = 3 * time.Minute

var (
	bin string // directory of the programs
	// cache is that of exanetctl qemu setup, which contrib/scripts/setup.sh test runs;
	// unusable says why guests cannot be booted from it.
	cache    *qemu.Cache
	unusable error
)

// TestMain builds the programs, without libraries, and boots a guest that is then
// restored for each test.
func TestMain(m *testing.M) {
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		return roles[os.Args[1]](os.Args[2:])
	}
	if os.Getenv(insideVariable) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "exanet-guests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir+"/", "../../cmd/pfd", "../../cmd/exanetctl")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	cache = &qemu.Cache{Dir: os.Getenv("EXANET_QEMU_CACHE"), Programs: dir, Say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "qemu: "+format+"\n", args...)
	}}
	if cache.Dir == "" {
		if cache.Dir, unusable = qemu.DefaultCache(); unusable != nil {
			return m.Run()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if unusable = cache.Prepare(ctx, qemu.Small, qemu.MachineX86); unusable != nil {
		unusable = fmt.Errorf("%s: %w", cache.Dir, unusable)
	}
	return m.Run()
}

// slow are arguments of a pfd in a guest without KVM: a block's time is many times
// a real node's.
var slow = []string{"--timeout-us", "1000000", "--guard-us", "2000000", "--window-idle", "10s", "--handshake-time", "60s"}

// fleet is guests of a test.
type fleet struct {
	t testing.TB
	*qemu.Fleet
}

// usable skips a test where no guest can be booted, with the reason; under STRICT=1
// the test fails with it.
func usable(t testing.TB) {
	t.Helper()
	unavailable(t, unusable)
}

func unavailable(t testing.TB, err error) {
	t.Helper()
	if err != nil && os.Getenv("STRICT") == "1" {
		t.Fatalf("guests cannot be booted: %v (contrib/scripts/setup.sh guests)", err)
	}
	if err != nil {
		t.Skipf("guests cannot be booted: %v", err)
	}
}

// boot boots guests; they end with the test.
func boot(t testing.TB, o qemu.Options) *fleet {
	t.Helper()
	usable(t)
	return bootFrom(t, cache, o)
}

// bootFrom is boot from another cache.
func bootFrom(t testing.TB, cache *qemu.Cache, o qemu.Options) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "exanet-") // a test's own is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	if o.Server == nil {
		o.Server = []string{filepath.Join(bin, "exanetctl"), "emu", "serve"}
	}
	began := time.Now()
	f, err := qemu.Boot(t.Context(), cache, filepath.Join(dir, "run"), o)
	if errors.Is(err, qemu.ErrNotSetUp) {
		unavailable(t, errors.Join(err, os.Remove(dir)))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d guests with %d nodes each, and pfd: %.1f s", o.Guests, o.Nodes, time.Since(began).Seconds())
	t.Cleanup(func() {
		if t.Failed() {
			for i := range f.Guests() {
				out, _ := (&fleet{t, f}).try(i, "sh", "-c", "cat /run/pfd.log; dmesg | tail -n 60")
				t.Logf("guest %d: %s", i, out)
			}
		}
		pids := []int{f.NodesPID()}
		for i := range f.Guests() {
			pids = append(pids, f.GuestPID(i))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.Stop(ctx); err != nil {
			t.Error(err)
		}
		for _, pid := range pids {
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); pid != 0 && err == nil && !strings.Contains(string(stat), ") Z ") {
				t.Errorf("process %d is left: %s", pid, stat)
			}
		}
		if err := os.Remove(dir); err != nil { // the fleet's part of it is gone
			t.Error(err)
		}
	})
	return &fleet{t, f}
}

// try runs a command in a guest; its output has standard error as well.
func (f *fleet) try(guest int, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out bytes.Buffer
	code, err := f.Run(ctx, guest, agent.Command{Exec: agent.Exec{Args: args}, Stdout: &out, Stderr: &out})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	return out.String(), err
}

// run is like try, for a command that must succeed.
func (f *fleet) run(guest int, args ...string) string {
	f.t.Helper()
	out, err := f.try(guest, args...)
	if err != nil {
		f.t.Fatalf("guest %d: %q: %v: %s", guest, args, err, out)
	}
	return out
}

// answer runs an exanetctl in a guest and reads its JSON.
func (f *fleet) answer(guest int, v any, args ...string) {
	f.t.Helper()
	out := f.run(guest, append([]string{"exanetctl", "-j"}, args...)...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		f.t.Fatalf("guest %d: %q: %v: %s", guest, args, err, out)
	}
}

// process is a test process in a guest (workload.Process): orders go in and
// replies come out, a line of JSON each.
type process struct {
	t   testing.TB
	in  *io.PipeWriter
	dec *json.Decoder
	end chan error
}

func (f *fleet) start(guest int) *process {
	f.t.Helper()
	orders, in := io.Pipe()
	out, replies := io.Pipe()
	p := &process{t: f.t, in: in, dec: json.NewDecoder(out), end: make(chan error, 1)}
	var said bytes.Buffer
	go func() {
		code, err := f.Run(f.t.Context(), guest, agent.Command{Exec: agent.Exec{Args: []string{"exanetctl", "test-process"}}, Stdin: orders, Stdout: replies, Stderr: &said})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d: %s", code, said.String())
		}
		replies.CloseWithError(errors.Join(io.EOF, err))
		p.end <- err
	}()
	return p
}

// object is a line of the test processes' protocol (internal/workload/protocol.go).
type object map[string]any

// reply is the part of a test process's answer that the tests use.
type reply struct {
	Error    string
	Remote   string
	Outcomes []struct {
		Done      bool
		Error     string
		LatencyNS int64 `json:"latency_ns"`
	}
	Verdict struct {
		Wrong    uint64
		First    int64
		Missing  int
		Resident int
	}
}

// write has a process make n transfers to or from what another one has exported, of equal
// parts of its buffer, and returns how long each took, ns.
func (p *process) write(t testing.TB, remote string, n int, more object) (ns []int64) {
	t.Helper()
	o := object{"targets": []object{{"remote": remote}}, "parts": n}
	maps.Copy(o, more)
	r := p.do(object{"op": "write", "write": o})
	for _, out := range r.Outcomes {
		if ns = append(ns, out.LatencyNS); !out.Done {
			t.Fatalf("transfer %d of %d ended so: %s", len(ns), n, out.Error)
		}
	}
	if len(ns) != n {
		t.Fatalf("%d transfers were made, want %d", len(ns), n)
	}
	return ns
}

func (p *process) do(o object) reply {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		p.t.Fatalf("order %v: %v", o, err)
	}
	var r reply
	if err := p.dec.Decode(&r); err != nil {
		p.t.Fatalf("order %v: %v", o, err)
	}
	if r.Error != "" {
		p.t.Fatalf("order %v: %s", o, r.Error)
	}
	return r
}

// close ends the process and waits for it.
func (p *process) close() {
	p.t.Helper()
	if err := p.in.Close(); err != nil {
		p.t.Error(err)
	}
	select {
	case err := <-p.end:
		if err != nil {
			p.t.Error(err)
		}
	case <-time.After(patience):
		p.t.Fatal("a test process does not end")
	}
}
