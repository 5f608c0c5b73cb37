package guests

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/qemu/agent"
	"github.com/exanet/pfd/soc/wire"
	"github.com/exanet/pfd/vfio/user"
)

// roles are the functions of this program that its first argument selects: in a guest, or on
// the host as the process that serves the nodes.
var roles = map[string]func(args []string) int{
	"serve-nodes": serveNodes,
	"map-pages":   mapPages,
	"bare-map":    bareMap,
	"limited":     limited,

	"protection-keys": protectionKeys,
}

// tool builds this program statically and without the race detector, and returns its path.
var tool = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "guests.test")
	c := exec.Command("go", "test", "-c", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return path, nil
})

// server returns the command of a serving process that tests can query and disturb.
func server(t testing.TB) []string {
	t.Helper()
	usable(t)
	path, err := tool()
	if err != nil {
		t.Fatal(err)
	}
	return []string{path, "serve-nodes"}
}

// install copies the tool into a guest and returns its path there.
func (f *fleet) install(guest int) string {
	f.t.Helper()
	path, err := tool()
	if err != nil {
		f.t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	const to = "/run/tool"
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	code, err := f.Run(ctx, guest, agent.Command{
		Exec:  agent.Exec{Args: []string{"sh", "-c", "cat >" + to + " && chmod 755 " + to}},
		Stdin: bytes.NewReader(b),
	})
	if err != nil || code != 0 {
		f.t.Fatalf("copying the tool into the guest: %v, exit code %d", err, code)
	}
	return to
}

// Nodes is the net/rpc interface of serveNodes.
type Nodes struct {
	machine *serve.Machine
	cut     atomic.Bool
}

// Count has the counts of one node's server.
type Count struct {
	user.Stats
	Ranges, Files int // currently mapped
}

// Count counts.
func (n *Nodes) Count(node int, c *Count) error {
	s := n.machine.Server(node)
	c.Stats = s.Stats()
	c.Ranges, c.Files = s.DMA().Mappings()
	return nil
}

// Cut cuts or restores the links between the nodes.
func (n *Nodes) Cut(cut bool, _ *bool) error {
	n.cut.Store(cut)
	return nil
}

// serveNodes runs exanetctl emu serve, with a second socket for a test.
func serveNodes(args []string) int {
	fs := flag.NewFlagSet("serve-nodes", flag.ContinueOnError)
	count, dir := fs.Int("nodes", 0, ""), fs.String("socket-dir", "", "")
	n := &Nodes{}
	err := fs.Parse(args)
	if err == nil {
		err = os.MkdirAll(*dir, 0o700)
	}
	if err == nil {
		n.machine, err = serve.New(serve.Config{Nodes: *count, OnLink: func(f *wire.Frame) *wire.Frame {
			if n.cut.Load() && f.SrcNode != f.DstNode {
				return nil
			}
			return f
		}})
	}
	if err == nil {
		defer n.machine.Close()
		err = n.serve(*dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (n *Nodes) serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	l, err := net.Listen("unix", filepath.Join(dir, "test.sock"))
	if err != nil {
		return err
	}
	defer l.Close()
	s := rpc.NewServer()
	if err := s.Register(n); err != nil {
		return err
	}
	go s.Accept(l)
	return n.machine.Run(ctx, dir, nil)
}

// ask calls a method of Nodes.
func (f *fleet) ask(method string, arg, reply any) {
	f.t.Helper()
	c, err := rpc.Dial("unix", filepath.Join(f.Dir, "nodes", "test.sock"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	if err := c.Call("Nodes."+method, arg, reply); err != nil {
		f.t.Fatal(err)
	}
}

// accesses returns how often the BARs of the first nodes were accessed.
func (f *fleet) accesses(nodes int) (sum uint64) {
	f.t.Helper()
	for i := range nodes {
		var c Count
		f.ask("Count", i, &c)
		sum += c.Accesses
	}
	return sum
}
