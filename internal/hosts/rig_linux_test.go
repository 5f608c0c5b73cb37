package hosts

import (
	"bytes"
	"context"
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
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/netns"
	files "github.com/exanet/pfd/link/hosts"
	"github.com/exanet/pfd/rdma"
)

const (
	// patience is reached only if something hangs.
	patience = 2 * time.Minute
	// longPatience is the same for the long forms.
	longPatience = 20 * time.Minute
	// group is the group of all processes. Its PDIDs are apart from those of the hosts.
	group     = "hosts"
	groupPDID = 0x10
	port      = 9480
)

// isLong reports whether the tests run their long forms (make hosts).
func isLong() bool { return os.Getenv("PFD_HOSTS") != "" }

// long skips a test that has only a long form.
func long(t *testing.T) {
	t.Helper()
	if !isLong() {
		t.Skip("part of make hosts (PFD_HOSTS=1)")
	}
}

var bin string // directory of the programs

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "exanet-hosts-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	return m.Run()
}

// built builds the programs once.
var built = sync.OnceValue(func() error {
	for _, args := range [][]string{
		{"build", "-buildvcs=false", "-o", bin + "/", "../../cmd/pfd", "../../cmd/exanetctl", "../../examples/counter"},
		{"build", "-C", "../../hostd", "-buildvcs=false", "-o", filepath.Join(bin, "exanet-hostd"), "."},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return nil
})

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

// process is a program of a host.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  output
	done chan struct{}
	err  error // of its end
}

// run starts a command by start. It ends with the test at the latest.
func run(t *testing.T, c *exec.Cmd, start func() error) *process {
	t.Helper()
	p := &process{t: t, cmd: c, done: make(chan struct{})}
	c.Stdout, c.Stderr = &p.out, &p.out
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	// Ends with the thread of the test, to which its goroutine is locked.
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = c.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.end(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("%s: %v\n%s", strings.Join(c.Args, " "), p.err, p.out.String())
		}
	})
	return p
}

// signal sends a signal to a process that may have ended.
func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// end ends a process by a signal and waits for it.
func (p *process) end(s os.Signal) {
	p.t.Helper()
	p.signal(s)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		<-p.done
		p.t.Errorf("%s does not end by %v", p.cmd.Args[0], s)
	}
}

// host is a machine with a pfd and an exanet-hostd.
type host struct {
	t          *testing.T
	name       string
	machine    *netns.Machine
	dir        string // of the cluster's files
	socket     string
	base       device.NodeID
	args       []string // of pfd
	pfd, hostd *process
	client     *control.Client
}

// cluster is a network of hosts.
type cluster struct {
	*testing.T
	mesh  *netns.Mesh
	hosts []*host
}

// names of the hosts.
var names = []string{"a", "b", "c", "d"}

// start starts a cluster of n hosts with nodes nodes each, and waits until all its links are up. args
// are more flags of each pfd.
func start(t *testing.T, n, nodes int, args ...string) *cluster {
	t.Helper()
	c := prepare(t, n, nodes, args...)
	for _, h := range c.hosts {
		h.startPFD()
		h.startHostd()
	}
	c.up()
	return c
}

// prepare makes the network and the files of a cluster.
func prepare(t *testing.T, n, nodes int, args ...string) *cluster {
	t.Helper()
	runtime.LockOSThread() // processes end with this thread if the test is killed
	t.Cleanup(runtime.UnlockOSThread)
	mesh, err := netns.New(n)
	if errors.Is(err, netns.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mesh.Close() })
	if err := built(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var list []files.New
	for i := range n {
		list = append(list, files.New{Name: names[i], Address: fmt.Sprintf("%v:%d", mesh.Machine(i).Addr(), port), Nodes: nodes})
	}
	etc := filepath.Join(dir, "etc")
	ready, err := files.Init(etc, "test", list, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	groups := filepath.Join(dir, "groups")
	if err := os.WriteFile(groups, fmt.Appendf(nil, "%d %s %#x\n", os.Getuid(), group, groupPDID), 0o644); err != nil {
		t.Fatal(err)
	}
	c := &cluster{T: t, mesh: mesh}
	for i := range n {
		run := filepath.Join(dir, names[i]) // no two hosts share a directory of sockets
		if err := os.Mkdir(run, 0o755); err != nil {
			t.Fatal(err)
		}
		h := &host{
			t: t, name: names[i], machine: mesh.Machine(i), dir: etc, socket: filepath.Join(run, "pfd.sock"), base: ready[i].NodeRange()[0],
			args: slices.Concat([]string{"--config", filepath.Join(etc, names[i]+".pfd.toml"), "--groups", groups}, args),
		}
		if h.client, err = control.New(h.socket); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.client.Close)
		c.hosts = append(c.hosts, h)
	}
	return c
}

// command returns one of our programs.
func command(name string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(bin, name), args...)
}

// startPFD starts the host's pfd, as its unit does: in a strict sandbox and without any network.
func (h *host) startPFD() {
	h.t.Helper()
	c := command("pfd", append([]string{"--socket", h.socket, "--sandbox", "strict", "--log-level", "debug"}, h.args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	h.pfd = run(h.t, c, c.Start)
	h.wait("pfd answers", func() bool {
		select {
		case <-h.pfd.done:
			h.t.Fatalf("pfd has ended: %s", h.pfd.out.String())
		default:
		}
		_, err := h.client.Status(h.t.Context())
		return err == nil
	})
}

// startHostd starts the host's exanet-hostd, in its network.
func (h *host) startHostd() {
	h.t.Helper()
	c := command("exanet-hostd", "--hosts", filepath.Join(h.dir, files.FileName), "--name", h.name, "--pfd", h.socket, "--log-level", "debug")
	h.hostd = run(h.t, c, func() error { return h.machine.Start(c) })
}

// wait waits until a condition is true.
func (h *host) wait(what string, check func() bool) { wait(h.t, h.name+": "+what, check) }

func wait(t *testing.T, what string, check func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !check(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// link returns the link to another host; its state is "" if there is none.
func (h *host) link(name string) control.Host {
	h.t.Helper()
	r, err := h.client.Hosts(h.t.Context())
	if err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
	for _, o := range r.Hosts {
		if o.Name == name {
			return o
		}
	}
	return control.Host{}
}

// waitState waits until the link to another host is in a state.
func (h *host) waitState(name, state string) {
	h.t.Helper()
	h.wait("the link to "+name+" is "+state, func() bool { return h.link(name).State == state })
}

// waitOngoing waits until a transfer of a process of the host is under way.
func (h *host) waitOngoing(ctx context.Context) {
	h.t.Helper()
	h.wait("a transfer is under way", func() bool {
		list, err := h.client.Channels(ctx, control.AllNodes)
		return err == nil && slices.ContainsFunc(list, func(c control.Channel) bool { return c.State == control.ChannelOngoing })
	})
}

// up waits until all links are up.
func (c *cluster) up() {
	c.Helper()
	for _, h := range c.hosts {
		for _, o := range c.hosts {
			if o != h {
				h.waitState(o.name, control.HostUp)
			}
		}
	}
}

// attach attaches this process to the node of a host's with an index.
func (h *host) attach(node int, o rdma.Options) *rdma.Endpoint {
	h.t.Helper()
	o.Socket, o.Node, o.Group, o.AcceptGroup = h.socket, h.base+device.NodeID(node), group, true
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	e, err := rdma.Attach(ctx, o)
	if err != nil {
		h.t.Fatalf("attach to node %d of %s: %v", node, h.name, err)
	}
	h.t.Cleanup(func() { _ = e.Close() })
	return e
}
