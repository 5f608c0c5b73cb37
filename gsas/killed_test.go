package gsas_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// childEnv makes this program a child of a test. Its value is "SOCKET NODE TOKEN OFFSET"; a token "-" is a new
// tree, and "pfd" makes it a pfd.
const childEnv = "GSAS_TEST_CHILD"

func TestMain(m *testing.M) {
	if order := os.Getenv(childEnv); order != "" {
		if err := child(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child adds 1 to a word of its tree's directory, then to the next one, without end. Nobody else adds there:
// each addition finds those before it.
func child(order string) error {
	var socket, text string
	var node device.NodeID
	var offset gsas.Address
	if _, err := fmt.Sscan(order, &socket, &node, &text, &offset); err != nil {
		return err
	}
	if text == "pfd" {
		return pfd(socket)
	}
	ctx := context.Background()
	ep, err := rdma.Attach(ctx, rdma.Options{Socket: socket, Node: node, Threads: true})
	if err != nil {
		return err
	}
	var t *gsas.Thread
	if text == "-" {
		if t, err = gsas.NewThread(ep); err == nil {
			_, err = t.Alloc(ctx, t.Node(), 1, t.Directory())
		}
	} else {
		var token gsas.Token
		if token, err = gsas.ParseToken(text); err == nil {
			t, err = gsas.Join(ep, token)
		}
	}
	if err != nil {
		return err
	}
	fmt.Println(t.ID())
	for k := uint64(0); ; k++ {
		for i := range gsas.Address(2) {
			if old, err := t.FetchAdd(ctx, t.Directory()+offset+8*i, 1); err != nil || old != k {
				return fmt.Errorf("addition %d to word %d finds %d: %w", k, i, old, err)
			}
		}
	}
}

// pfd runs a pfd for the tests, until it is killed.
func pfd(socket string) error {
	cfg := daemon.Default()
	cfg.Socket = socket
	m, err := daemon.Emulated(cfg)
	if err != nil {
		return err
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		return err
	}
	fmt.Println(0) // it listens
	return d.Run(context.Background())
}

// spawn starts a child, and returns it and the id of its thread.
func (r *rig) spawn(n device.NodeID, token string, offset gsas.Address) (*exec.Cmd, uint32) {
	r.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s %d", childEnv, r.socket, n, token, offset))
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	r.ok(err)
	r.ok(c.Start())
	r.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	r.ok(err)
	var id uint32
	_, err = fmt.Sscan(strings.TrimSpace(line), &id)
	r.ok(err)
	return c, id
}

func (r *rig) trees(c *control.Client) []control.GSASTree {
	r.Helper()
	trees, err := c.GSAS(r.Context())
	r.ok(err)
	return trees
}

// TestKilled: what a process that is killed has begun is done or not, once. Its threads end, its tree's pages
// stay while others have the tree, and go with the last thread.
func TestKilled(t *testing.T) {
	r := newRig(t, nil)
	ctl, err := control.New(r.socket)
	r.ok(err)
	defer ctl.Close()
	root := r.begin(0)
	directory := root.Directory()
	r.alloc(root, 0, 1, directory)
	for round := range gsas.Address(3) {
		var children [2]*exec.Cmd
		for i := range children {
			words := directory + 64*round + 16*gsas.Address(i)
			var id uint32
			children[i], id = r.spawn(device.NodeID(i), root.Token().String(), words-directory)
			for v := uint64(0); v < 20; {
				v, err = root.Load64(t.Context(), words)
				r.ok(err)
			}
			if alive, err := root.Alive(t.Context(), id); !alive || err != nil {
				t.Errorf("child %d is alive: %v, %v", i, alive, err)
			}
		}
		for i, c := range children {
			r.ok(c.Process.Kill())
			_ = c.Wait()
			for len(r.trees(ctl)[0].Threads) > len(children)-i { // until pfd has seen it
			}
			v, err := root.Load128(t.Context(), directory+64*round+16*gsas.Address(i))
			if r.ok(err); v[0]-v[1] > 1 {
				t.Errorf("child %d has added %d and %d", i, v[0], v[1])
			}
		}
	}
	c, _ := r.spawn(1, "-", 0)
	if trees := r.trees(ctl); len(trees) != 2 || trees[1].SizeBytes != gsas.PageSize || trees[1].Node != 1 {
		t.Errorf("trees %+v", trees)
	}
	r.ok(c.Process.Kill())
	_ = c.Wait()
	for len(r.trees(ctl)) > 1 {
	}
	if v, err := root.FetchAdd(t.Context(), directory, 1); v < 20 || err != nil {
		t.Errorf("the word of a killed child is %d, %v", v, err)
	}
}

// TestStopped: a process that is stopped for seconds amid its additions, or whose pfd is, has done each once
// when it goes on.
func TestStopped(t *testing.T) {
	r := &rig{t, t.TempDir() + "/pfd.sock"}
	pfd, _ := r.spawn(0, "pfd", 0)
	root := r.begin(0)
	directory := root.Directory()
	r.alloc(root, 0, 1, directory)
	var children [2]*exec.Cmd
	var ids [2]uint32
	for i := range children {
		children[i], ids[i] = r.spawn(device.NodeID(i), root.Token().String(), 16*gsas.Address(i))
	}
	goesOn := func() {
		t.Helper()
		for i := range gsas.Address(2) {
			before, err := root.Load64(t.Context(), directory+16*i)
			r.ok(err)
			for v := before; v < before+20; {
				v, err = root.Load64(t.Context(), directory+16*i)
				r.ok(err)
				if alive, err := root.Alive(t.Context(), ids[i]); !alive || err != nil {
					t.Fatalf("child %d is alive: %v, %v", i, alive, err)
				}
			}
		}
	}
	goesOn()
	for _, c := range []*exec.Cmd{children[0], pfd} {
		for k := range 8 {
			r.ok(c.Process.Signal(syscall.SIGSTOP))
			if k == 0 {
				time.Sleep(2000 * time.Millisecond) // a hundred repetitions
			} else {
				time.Sleep(30 * time.Millisecond) // more than one repetition
			}
			r.ok(c.Process.Signal(syscall.SIGCONT))
			goesOn()
		}
	}
}

// TestPFDEnds: operations in flight and later ones fail when pfd ends; none sees zeros.
func TestPFDEnds(t *testing.T) {
	cfg := daemon.Default()
	cfg.Socket = t.TempDir() + "/pfd.sock"
	m, err := daemon.Emulated(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	r := &rig{t, cfg.Socket}
	a := r.begin(0)
	b := r.join(1, a)
	at := r.alloc(a, 0, 1, 0)
	r.ok(a.Store64(t.Context(), at, 1<<32))
	var callers sync.WaitGroup
	for i := range 6 {
		th := []*gsas.Thread{a, b}[i%2]
		callers.Go(func() {
			for {
				v, err := th.FetchAdd(t.Context(), at, 1)
				switch {
				case err == nil && v < 1<<32:
					t.Errorf("the word is %d", v)
				case err == nil:
					continue
				case !errors.Is(err, rdma.ErrGone) && !errors.Is(err, gsas.ErrGone):
					t.Errorf("an operation when pfd ends: %v", err)
				}
				return
			}
		})
	}
	for v := uint64(0); v < 1<<32+100; {
		v, err = b.Load64(t.Context(), at)
		r.ok(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	callers.Wait()
	if v, err := a.Load64(t.Context(), at); err == nil {
		t.Errorf("a word of a pfd that has ended is %d", v)
	}
	if err := b.Close(); err != nil {
		t.Errorf("close a thread of a pfd that has ended: %v", err)
	}
}
