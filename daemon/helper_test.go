package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/api"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device/pagein"
)

// patience bounds every wait of these tests. Only a hang reaches it.
const patience = 2 * time.Minute

const childEnv = "PFD_DAEMON_TEST_CHILD"

func TestMain(m *testing.M) {
	if session.IsMemoryHelper(os.Args) { // of a child of another user
		if err := session.ServeMemory(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if role := os.Getenv(childEnv); role != "" {
		os.Exit(child(role))
	}
	os.Exit(m.Run())
}

// running is a daemon in this process over a fake machine.
type running struct {
	*Daemon
	t      *testing.T
	fake   *fake
	client *control.Client
	cancel context.CancelFunc
	result chan error
}

// start runs a daemon of two nodes. It is ready when start returns.
func start(t *testing.T, change ...func(*Config)) *running {
	t.Helper()
	f := newFake(2)
	return startOn(t, f, f, change...)
}

// startOn is like start, on a machine that contains f.
func startOn(t *testing.T, f *fake, m session.Machine, change ...func(*Config)) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "pfd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Children of another uid connect too.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Socket = filepath.Join(dir, "pfd.sock")
	for _, c := range change {
		c(&cfg)
	}
	r := &running{t: t, fake: f, result: make(chan error, 1)}
	if r.Daemon, err = New(cfg, m); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	go func() { r.result <- r.Run(ctx) }()
	if r.client, err = control.New(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.client.Close()
		r.cancel()
		<-r.result
	})
	if _, err := r.client.Status(r.ctx()); err != nil {
		t.Fatal(err)
	}
	return r
}

// wait waits for Run and returns its error, which the cleanup finds again.
func (r *running) wait() error {
	r.t.Helper()
	select {
	case err := <-r.result:
		r.result <- err
		return err
	case <-time.After(patience):
		r.t.Fatal("the daemon does not end")
		return nil
	}
}

func (r *running) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *running) node(i int) *session.Node { return r.host.Nodes()[i] }

// refusals returns how many connections got no attachment.
func (r *running) refusals() uint64 {
	n, _ := r.host.Refused()
	return n
}

// ask asks a daemon's control interface as a peer.
func ask(t *testing.T, d *Daemon, p api.Peer, method, path string) (int, []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	d.api.Handler().ServeHTTP(w, httptest.NewRequestWithContext(api.WithPeer(t.Context(), p), method, path, nil))
	return w.Code, w.Body.Bytes()
}

// answer returns the answer that a peer gets.
func answer[T any](t *testing.T, d *Daemon, p api.Peer, path string) (v T) {
	t.Helper()
	status, body := ask(t, d, p, http.MethodGet, path)
	if err := json.Unmarshal(body, &v); err != nil || status != http.StatusOK {
		t.Fatalf("%s answers %d %s, %v", path, status, body, err)
	}
	return v
}

// metrics returns all metrics of a daemon.
func metrics(t *testing.T, d *Daemon) string {
	t.Helper()
	status, text := ask(t, d, api.Peer{All: true}, http.MethodGet, control.PathMetrics)
	if status != http.StatusOK {
		t.Fatalf("the metrics: %d %s", status, text)
	}
	return string(text)
}

func (r *running) attachSocket() string { return control.AttachSocket(r.cfg.Socket) }

// until waits until f, asked on the owner, is true.
func (r *running) until(what string, f func() bool) {
	r.t.Helper()
	ok := false
	for deadline := time.Now().Add(patience); !ok; time.Sleep(time.Millisecond) {
		r.fake.do(func() { ok = f() })
		if !ok && time.Now().After(deadline) {
			r.t.Fatalf("never: %s", what)
		}
	}
}

// client of the attachment socket.
type guest struct {
	*attach.Conn
	attach.Welcome
	fds attach.Descriptors
}

func hello() attach.Hello {
	return attach.Hello{Group: "test", Method: pagein.GUP, Policy: pagein.PIO}
}

func dialAndGreet(ctx context.Context, socket string, h attach.Hello) (*guest, error) {
	c, err := attach.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	w, fds, err := c.Handshake(ctx, h)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &guest{c, w, fds}, nil
}

// attach attaches this process.
func (r *running) attach(h attach.Hello) *guest {
	r.t.Helper()
	g, err := dialAndGreet(r.ctx(), r.attachSocket(), h)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		g.fds.Close()
		g.Close()
	})
	return g
}

// ended reads messages until the attachment's end, and returns it.
func (r *running) ended(g *guest) attach.Ended {
	r.t.Helper()
	buf := make([]byte, attach.MaxMessage)
	for {
		n, _, err := g.Receive(r.ctx(), buf)
		if err != nil {
			r.t.Fatalf("no end came: %v", err)
		}
		if e, err := attach.DecodeEnded(buf[:n]); err == nil {
			return e
		}
	}
}

// process is a child of the test, in one of the roles of child.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
	in  io.WriteCloser
}

func spawn(t *testing.T, role string, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, out: bufio.NewScanner(out), in: in}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

// line waits for the child's next line.
func (p *process) line() string {
	p.t.Helper()
	got := make(chan string, 1)
	go func() {
		if p.out.Scan() {
			got <- p.out.Text()
		} else {
			got <- fmt.Sprintf("child ended: %v", p.out.Err())
		}
	}()
	select {
	case s := <-got:
		return s
	case <-time.After(patience):
		p.t.Fatal("the child says nothing")
		return ""
	}
}

// child runs a role in a re-executed test binary. It prints lines, and ends when its standard
// input does.
func child(role string) int {
	socket := os.Getenv("PFD_TEST_SOCKET")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	say := func(format string, args ...any) { fmt.Printf(strings.ReplaceAll(format, "\n", " ")+"\n", args...) }
	switch role {
	case "attach":
		g, err := dialAndGreet(ctx, control.AttachSocket(socket), hello())
		if err != nil {
			say("error %v", err)
			return 1
		}
		say("attached %d", g.Slot)
	case "hold": // keeps what it inherits open
		say("holding")
	case "lend": // attaches, and hands its socket to another process
		c, err := attach.Dial(ctx, control.AttachSocket(socket))
		if err != nil {
			say("error %v", err)
			return 1
		}
		if _, _, err := c.Handshake(ctx, hello()); err != nil {
			say("error %v", err)
			return 1
		}
		pid, err := lend()
		if err != nil {
			say("error %v", err)
			return 1
		}
		say("%d", pid)
	case "target":
		return target(ctx, socket, say)
	case "nobody":
		const nobody = 65534
		if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(nobody, nobody, nobody), unix.Setresuid(nobody, nobody, nobody)); err != nil {
			say("error %v", err)
			return 1
		}
		return unprivileged(ctx, socket, say)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// keepSockets keeps every socket of this process open over an exec.
func keepSockets() error {
	fds, err := socketFDs()
	for _, fd := range fds {
		if _, ferr := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); ferr != nil {
			err = errors.Join(err, ferr)
		}
	}
	return err
}

func socketFDs() (fds []int, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		link, lerr := os.Readlink("/proc/self/fd/" + e.Name())
		if lerr != nil || !strings.HasPrefix(link, "socket:") {
			continue
		}
		fd, aerr := strconv.Atoi(e.Name())
		if aerr != nil {
			return nil, aerr
		}
		fds = append(fds, fd)
	}
	return fds, err
}

// lend starts a process that inherits every socket of this one.
func lend() (int, error) {
	fds, err := socketFDs()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=hold")
	for _, fd := range fds {
		if fd, err = unix.Dup(fd); err != nil {
			return 0, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), "lent"))
	}
	// Its standard input is a pipe that nobody closes: it ends by its pid.
	in, _, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	cmd.Stdin = in
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// unprivileged makes all requests as another user.
func unprivileged(ctx context.Context, socket string, say func(string, ...any)) int {
	c, err := control.New(socket)
	if err != nil {
		say("error %v", err)
		return 1
	}
	attachAs := func() string {
		g, err := dialAndGreet(ctx, control.AttachSocket(socket), hello())
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("slot %d", g.Slot)
	}
	// The change of the user has made this process not dumpable, as a set-uid
	// program is.
	say("not dumpable: %s", attachAs())
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		say("error %v", err)
		return 1
	}
	say("dumpable: %s", attachAs())
	s, err := c.Status(ctx)
	say("status: %d domains, %v", s.Domains, err)
	domains, err := c.Domains(ctx, control.AllNodes)
	say("domains: %d, %v", len(domains), err)
	for _, d := range domains {
		say("domain: uid %d slot %d", d.UID, d.Slot)
	}
	channels, err := c.Channels(ctx, 0)
	say("channels: %d, %v", len(channels), err)
	banks, err := c.SMMU(ctx, control.AllNodes)
	say("banks: %d, %v", len(banks), err)
	fifos, err := c.FIFOs(ctx, 0)
	say("fifo: level %d, %d entries, %v", fifos[0].Level, len(fifos[0].Entries), err)
	_, err = c.Registers(ctx, 0, "pl")
	say("registers: %v", errors.Is(err, control.ErrForbidden))
	say("end")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
