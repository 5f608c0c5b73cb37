package hostile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
)

// world is a pfd and what attaches to it.
type world struct {
	namespaces uintptr // clone(2) flags of processes that are spawned
	t          *testing.T
	dir        string
	args       []string
	env        []string
	cmd        *exec.Cmd
	ended      chan error
	stderr     *syncBuffer
	*control.Client
	credential *syscall.Credential // of pfd, nil this test's
	shared     bool                // the device sees what processes share alone
	far        *world              // has node 1, if that is another host
	hostd      *hostd              // of a host
}

// syncBuffer keeps what a process says.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start starts a pfd of two nodes. It ends with the test, in good order.
func start(t *testing.T, args ...string) *world {
	t.Helper()
	return startAs(t, pfdProgram, nil, args...)
}

func startAs(t *testing.T, program func() (string, error), env []string, args ...string) *world {
	t.Helper()
	w := prepareAs(t, program, env, args...)
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	return w
}

// prepareAs makes a world whose pfd does not run yet.
func prepareAs(t *testing.T, program func() (string, error), env []string, args ...string) *world {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(work, "w")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, args: append([]string{path, "--nodes", "2", "--socket", filepath.Join(dir, "s")}, args...), env: env, stderr: &syncBuffer{}}
	// pfd ends with the thread that started it, should this test be killed.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	t.Cleanup(w.stop)
	if w.Client, err = control.New(w.socket()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Client.Close)
	return w
}

// during has a subtest own what it starts.
func (w *world) during(t *testing.T) {
	old := w.t
	w.t = t
	t.Cleanup(func() { w.t = old })
}

func (w *world) socket() string { return filepath.Join(w.dir, "s") }

// run starts the daemon and waits until it is ready.
func (w *world) run() error {
	ready, err := w.launch()
	if err != nil {
		return err
	}
	return ready()
}

// launch starts the daemon, and returns a function that waits until it is ready.
func (w *world) launch() (ready func() error, err error) {
	notify := filepath.Join(w.dir, "n")
	_ = os.Remove(notify)
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(notify, 0o777); err != nil { // a pfd of another user writes it
		return nil, errors.Join(err, l.Close())
	}
	w.cmd = exec.Command(w.args[0], w.args[1:]...)
	w.cmd.Env = append(append(os.Environ(), "NOTIFY_SOCKET="+notify), w.env...)
	w.cmd.Stderr = w.stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: w.credential}
	if err := w.cmd.Start(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	w.ended = make(chan error, 1)
	cmd, ended := w.cmd, w.ended
	go func() { ended <- cmd.Wait(); _ = l.Close() }()
	return func() error { return w.ready(l) }, nil
}

func (w *world) ready(l *net.UnixConn) error {
	defer l.Close()
	if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	b := make([]byte, 4096)
	for {
		n, err := l.Read(b)
		if err != nil {
			return fmt.Errorf("pfd is not ready: %w: %s", err, w.stderr)
		}
		if strings.Contains(string(b[:n]), "READY=1") {
			return nil
		}
	}
}

// kill ends the daemon as a power cut would.
func (w *world) kill() {
	w.t.Helper()
	if err := w.cmd.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	<-w.ended
	w.cmd = nil
}

func (w *world) stop() {
	if w.cmd == nil {
		return
	}
	_ = w.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-w.ended:
		if err != nil {
			w.t.Errorf("pfd: %v\n%s", err, w.stderr)
		}
	case <-time.After(patience):
		_ = w.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-w.ended:
		case <-time.After(patience): // one that is stopped
			_ = w.cmd.Process.Kill()
			<-w.ended
		}
		w.t.Errorf("pfd did not end on SIGTERM\n%s", w.stderr)
	}
	w.cmd = nil
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

// count returns a counter of a node, or of all nodes together.
func (w *world) count(node int, name string) uint64 {
	w.t.Helper()
	list, err := w.Counters(w.ctx(), node)
	if err != nil {
		w.t.Fatal(err)
	}
	sum, found := uint64(0), false
	for _, c := range list {
		if c.Name == name {
			sum, found = sum+c.Value, true
		}
	}
	if !found {
		w.t.Fatalf("no counter %q", name)
	}
	return sum
}

func hw(c device.Counter) string { return c.String() + "_total" }

// saw fails the test where a counter does not grow beyond what it was.
func (w *world) saw(node int, name string, before uint64) {
	w.t.Helper()
	w.until(fmt.Sprintf("counter %s of node %d grows beyond %d", name, node, before), func() bool { return w.count(node, name) > before })
}

// until waits for something that must come.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s\n%s", what, w.stderr)
		}
	}
}

// proxy is a process of the test, as the test has it.
type proxy struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	enc  *json.Encoder
	out  *bufio.Reader
	over bool
}

// spawn starts a process that obeys orders; uid other than 0 is somebody else.
func (w *world) spawn(name string, uid uint32, env ...string) *proxy {
	w.t.Helper()
	return w.spawnWith(name, uid, nil, env...)
}

// spawnWith is spawn, and hands files over as descriptors 3 and on.
func (w *world) spawnWith(name string, uid uint32, files []*os.File, env ...string) *proxy {
	w.t.Helper()
	path, err := self()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.spawnBy([]string{path}, name, uid, files, env...)
}

// spawnBy is spawnWith by a command line that ends with the program.
func (w *world) spawnBy(args []string, name string, uid uint32, files []*os.File, env ...string) *proxy {
	t := w.t
	t.Helper()
	var err error
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = w.dir
	cmd.Env = append(append(os.Environ(), agentEnv+"=1", "GORACE=atexit_sleep_ms=0"), env...)
	if w.far != nil {
		cmd.Env = append(cmd.Env, farEnv+"="+w.far.socket())
	}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: w.namespaces}
	if uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: false}
	}
	p := &proxy{t: t, name: name, cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out, p.enc = bufio.NewReader(out), json.NewEncoder(p.in)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// attach starts a process that is attached. The method is gup where it is empty.
func (w *world) attach(name string, a attachOrder) *proxy {
	w.t.Helper()
	p := w.spawn(name, a.UID)
	a.Socket = w.socket()
	p.must(order{Op: "attach", Attach: a})
	return p
}

func (p *proxy) pid() int { return p.cmd.Process.Pid }

// kill ends the process now. It may be called twice.
func (p *proxy) kill() {
	if p.over {
		return
	}
	p.over = true
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

func (p *proxy) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

var errSilent = errors.New("says nothing")

// do sends an order and returns the reply.
func (p *proxy) do(o order) (reply, error) {
	if err := p.enc.Encode(o); err != nil {
		return reply{}, fmt.Errorf("%s: %w", p.name, err)
	}
	type line struct {
		b   []byte
		err error
	}
	got := make(chan line, 1)
	go func() {
		b, err := p.out.ReadBytes('\n')
		got <- line{b, err}
	}()
	select {
	case l := <-got:
		var r reply
		if l.err == nil {
			l.err = json.Unmarshal(l.b, &r)
		}
		if l.err != nil {
			return r, fmt.Errorf("%s, order %s: %w", p.name, o.Op, l.err)
		}
		return r, nil
	case <-time.After(orderPatience):
		return reply{}, fmt.Errorf("%s, order %s: %w", p.name, o.Op, errSilent)
	}
}

// must sends an order that has to succeed.
func (p *proxy) must(o order) reply {
	p.t.Helper()
	r, err := p.do(o)
	if err != nil {
		p.t.Fatal(err)
	}
	if r.Err != "" {
		p.t.Fatalf("%s, order %s: %s", p.name, o.Op, r.Err)
	}
	return r
}

// buffer makes a buffer in the process and returns its Remote.
func (p *proxy) buffer(id, kind string, size, seed uint64) reply {
	p.t.Helper()
	return p.must(order{Op: "buffer", ID: id, Kind: kind, Size: size, Seed: seed})
}

// write starts a transfer from the process's buffer src.
func (p *proxy) write(id, src, remote string, size uint64) {
	p.t.Helper()
	p.must(order{Op: "write", ID: id, Kind: src, Remote: remote, Size: size})
}

// wait waits for a transfer and returns its status code, 0 if every byte arrived.
func (p *proxy) wait(id string) reply {
	p.t.Helper()
	return p.must(order{Op: "wait", ID: id})
}

// arrives waits for a transfer that has to arrive.
func (p *proxy) arrives(id string) {
	p.t.Helper()
	if r := p.wait(id); r.Code != 0 || !r.Done {
		p.t.Errorf("%s: transfer %s did not arrive: code %d, %s", p.name, id, r.Code, r.Text)
	}
}

// holds fails the test where a buffer does not hold the pattern of a seed.
func (p *proxy) holds(id string, seed, from, to uint64) {
	p.t.Helper()
	if r := p.must(order{Op: "check", ID: id, Seed: seed, Off: from, Size: to - from}); r.Wrong != 0 {
		p.t.Errorf("%s: buffer %s, bytes %d to %d: %d wrong, the first at %d", p.name, id, from, to, r.Wrong, r.First)
	}
}

// bystander is a process attached to both nodes that writes from one to the
// other and checks every byte, over and over, until it is told to stop.
type bystander struct{ *proxy }

func (w *world) bystander(a attachOrder) *bystander {
	w.t.Helper()
	a.Socket = w.socket()
	if a.Group == "" {
		a.Group = "bystander"
	}
	p := w.spawn("bystander", a.UID)
	p.must(order{Op: "attach", Attach: a})
	p.must(order{Op: "burst", Attach: a})
	b := &bystander{p}
	b.some()
	return b
}

// some waits until the bystander has made some more transfers.
func (b *bystander) some() { b.must(order{Op: "some", Size: 50}) }

// fine stops the bystander: nothing of its own may have gone wrong.
func (b *bystander) fine() reply {
	b.t.Helper()
	b.some()
	r := b.must(order{Op: "stop"})
	if r.Text != "" || r.Wrong != 0 {
		b.t.Errorf("the bystander: %d bytes wrong, %s", r.Wrong, r.Text)
	}
	return r
}

// p99 returns the bystander's p99 over a while in which nothing else happens.
func (b *bystander) p99() time.Duration {
	b.t.Helper()
	b.must(order{Op: "forget"})
	b.must(order{Op: "some", Size: 400})
	return time.Duration(b.must(order{Op: "forget"}).P99)
}
