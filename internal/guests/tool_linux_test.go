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

// roles are what this program is when its first word says so: in a guest, or on the
// host the process of the nodes.
var roles = map[string]func(args []string) int{
	"serve-nodes": serveNodes,
	"map-pages":   mapPages,
	"bare-map":    bareMap,
	"limited":     limited,

	"protection-keys": protectionKeys,
}

// tool gives this program once more, without libraries and the race detector.
var tool = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "guests.test")
	c := exec.Command("go", "test", "-c", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return path, nil
})

// server is the command of a process of nodes that tests ask and disturb.
func server(t testing.TB) []string {
	t.Helper()
	usable(t)
	path, err := tool()
	if err != nil {
		t.Fatal(err)
	}
	return []string{path, "serve-nodes"}
}

// install puts the tool into a guest.
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
		f.t.Fatalf("the tool does not come into the guest: %v, exit code %d", err, code)
	}
	return to
}

// Nodes is what serveNodes answers, by net/rpc.
type Nodes struct {
	machine *serve.Machine
	cut     atomic.Bool
}

// Count is what one node's server tells.
type Count struct {
	user.Stats
	Ranges, Files int // mapped
}

// Count counts.
func (n *Nodes) Count(node int, c *Count) error {
	s := n.machine.Server(node)
	c.Stats = s.Stats()
	c.Ranges, c.Files = s.DMA().Mappings()
	return nil
}

// Cut cuts the links between the nodes, or joins them again.
func (n *Nodes) Cut(cut bool, _ *bool) error {
	n.cut.Store(cut)
	return nil
}

// serveNodes is exanetctl emu serve, and beside it a socket for a test.
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

// accesses gives how often the BARs of the first nodes have been accessed.
func (f *fleet) accesses(nodes int) (sum uint64) {
	f.t.Helper()
	for i := range nodes {
		var c Count
		f.ask("Count", i, &c)
		sum += c.Accesses
	}
	return sum
}
