package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
)

// patience is met only where something hangs.
const patience = 2 * time.Minute

var bin string // directory of the programs

// TestMain builds the programs once, or is the other process of TestStreams.
func TestMain(m *testing.M) {
	if args := os.Getenv(echoEnv); args != "" {
		if err := echo(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exanet-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "../../cmd/pfd", "../../cmd/exanetctl").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// process is a program of ours.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer // standard output
	err  output       // standard error
	done chan struct{}
	code error
}

// output keeps what a process says.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts a program. It ends with the test at the latest.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return startCommand(t, name, exec.Command(filepath.Join(bin, name), args...))
}

// startWithin is start of a program that may have so many descriptors.
func startWithin(t *testing.T, descriptors int, name string, args ...string) *process {
	t.Helper()
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors)
	return startCommand(t, name, exec.Command("sh", append([]string{"-c", script, filepath.Join(bin, name)}, args...)...))
}

func startCommand(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	// Processes that we start end with our thread if this test is killed.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.code = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // a stopped one takes no other
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(patience):
			_ = p.cmd.Process.Kill()
			<-p.done
			t.Errorf("%s did not end by SIGTERM: %s", name, p.err.String())
		}
		if t.Failed() {
			t.Logf("%s: %v\n%s", strings.Join(cmd.Args, " "), p.code, p.err.String())
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v: %v", p.name, s, err)
	}
}

// kill ends a process as a crash does.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// wait waits for the end and returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end: %s", p.name, p.err.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// until waits until look says so.
func until(t *testing.T, what string, look func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !look(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to that: %s", what)
		}
	}
}

// place is a directory with the nodes' sockets.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "exanet-") // a test's own is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &place{t, dir}
}

func (l *place) file(name string) string { return filepath.Join(l.dir, name) }

// serve starts the device of two nodes.
func (l *place) serve(args ...string) *process {
	l.t.Helper()
	p := start(l.t, "exanetctl", append([]string{"emu", "serve", "--nodes", "2", "--socket-dir", l.dir}, args...)...)
	return p
}

// daemon starts a pfd over the nodes named, and waits until it is ready.
func (l *place) daemon(nodes []int, args ...string) *daemon {
	l.t.Helper()
	d := l.starting(nodes, args...)
	d.ready()
	return d
}

func (l *place) starting(nodes []int, args ...string) *daemon {
	l.t.Helper()
	var paths []string
	for _, n := range nodes {
		paths = append(paths, l.file(fmt.Sprintf("node%d.sock", n)))
	}
	socket := l.file(fmt.Sprintf("pfd%d.sock", nodes[0]))
	args = append([]string{"--device", "vfio-user:" + strings.Join(paths, ","), "--socket", socket}, args...)
	return newDaemon(l.t, socket, start(l.t, "pfd", args...))
}

// daemon is a pfd and a client of it.
type daemon struct {
	*process
	*control.Client
	socket string
}

func newDaemon(t *testing.T, socket string, p *process) *daemon {
	t.Helper()
	c, err := control.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &daemon{p, c, socket}
}

func (d *daemon) state() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := d.Status(ctx)
	if err != nil || s.PID != d.cmd.Process.Pid {
		return ""
	}
	return s.State
}

func (d *daemon) ready() {
	d.t.Helper()
	until(d.t, "pfd is ready", func() bool {
		select {
		case <-d.done:
			d.t.Fatalf("pfd ended: %s", d.err.String())
		default:
		}
		return d.state() == control.StateReady
	})
}

// counter returns a counter, summed over the nodes; 0 while there is none.
func (d *daemon) counter(name string) uint64 {
	list, err := d.Counters(context.Background(), control.AllNodes)
	if err != nil {
		return 0
	}
	var sum uint64
	for _, c := range list {
		if c.Name == name {
			sum += c.Value
		}
	}
	return sum
}

// metric returns the sum of a metric over its labels.
func (d *daemon) metric(name string) float64 {
	d.t.Helper()
	text, err := d.Metrics(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			var v float64
			if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v); err != nil {
				d.t.Fatal(err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		d.t.Fatalf("no metric %s", name)
	}
	return sum
}

// result is the JSON output of exanetctl write.
type result struct {
	Transfers, Failed int
	Bytes, Faults     uint64
	Verified          bool
	Error             *string
	PinnedBytes       int64 `json:"pinned_bytes"`
	keys              []string
}

// write starts exanetctl write.
func (d *daemon) write(args ...string) *process {
	d.t.Helper()
	return start(d.t, "exanetctl", append([]string{"--socket", d.socket, "write", "-o", "json"}, args...)...)
}

// outcome waits for a write's end and returns its result.
func outcome(p *process) (r result, code int) {
	p.t.Helper()
	code = p.wait()
	var keys map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(p.out.Bytes(), &r), json.Unmarshal(p.out.Bytes(), &keys)); err != nil {
		p.t.Fatalf("write: exit code %d: %v: %s%s", code, err, p.out.String(), p.err.String())
	}
	for k := range keys {
		r.keys = append(r.keys, k)
	}
	slices.Sort(r.keys)
	return r, code
}

// good makes transfers that must all arrive, every byte right.
func (d *daemon) good(count int, args ...string) result {
	d.t.Helper()
	p := d.write(append(args, "--count", fmt.Sprint(count))...)
	r, code := outcome(p)
	if code != 0 || r.Transfers != count || r.Failed != 0 || !r.Verified || r.PinnedBytes != 0 {
		d.t.Fatalf("write %v: exit code %d, %+v, %s", args, code, r, p.err.String())
	}
	return r
}

// waited waits for the end and returns the standard output.
func (p *process) waited() []byte {
	p.t.Helper()
	p.wait()
	return p.out.Bytes()
}
