package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// Each of three hosts has a tree that the others join. Then a host is struck from the list of the two
// others: its tree ends there, its threads are dead to the other trees, and these go on.
func TestTreesOfAStruckHost(t *testing.T) {
	long(t)
	c := start(t, 3, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var threads [3][3]*gsas.Thread // of a tree, on a host
	var words [3][3]gsas.Address
	for tree, owner := range c.hosts {
		root := owner.thread(gsas.Token{})
		for i, h := range c.hosts {
			threads[tree][i] = root
			if i != tree {
				threads[tree][i] = h.thread(root.Token())
			}
			var err error
			if words[tree][i], err = root.Alloc(ctx, h.base, 1, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	add := func(tree int, on ...int) {
		t.Helper()
		for _, i := range on {
			for _, k := range on {
				if _, err := threads[tree][i].FetchAdd(ctx, words[tree][k], 1); err != nil {
					t.Errorf("tree of %s: the thread on %s adds to the word on %s: %v", names[tree], names[i], names[k], err)
				}
			}
		}
	}
	// Host c does not know yet that host b may use a's tree, and cannot ask a before their cable is back.
	if err := c.mesh.Cut(0, 2); err != nil {
		t.Fatal(err)
	}
	wait(t, "the cut is noticed", func() bool { return c.hosts[2].link("a").State != "up" })
	first := make(chan error, 1)
	go func() {
		_, err := threads[0][1].FetchAdd(ctx, words[0][2], 0)
		first <- err
	}()
	if err := c.mesh.Repair(0, 2); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Errorf("a thread on b adds to a's word on c: %v", err)
	}
	for tree := range c.hosts {
		add(tree, 0, 1, 2)
	}
	a, struck, other := c.hosts[0], c.hosts[1], c.hosts[2]
	strike(t, a.dir, struck.name)
	for _, h := range []*host{a, other} {
		h.hostd.signal(syscall.SIGHUP)
		h.wait("the tree of the struck host ends", func() bool {
			trees, err := h.client.GSAS(ctx)
			return err == nil && len(trees) == 2
		})
	}
	for _, tree := range []int{0, 2} {
		for _, i := range []int{0, 2} {
			h := threads[tree][i]
			wait(t, "the struck host's thread is dead", func() bool {
				alive, err := h.Alive(ctx, threads[tree][1].ID())
				return err == nil && !alive
			})
			if v, err := h.Load64(ctx, words[tree][1]); err == nil {
				t.Errorf("a word of the struck host is %d", v)
			}
		}
		add(tree, 0, 2)
		for _, k := range []int{0, 2} {
			if v, err := threads[tree][0].Load64(ctx, words[tree][k]); err != nil || v != 5 {
				t.Errorf("tree of %s: the word on %s is %d, %v, want 5", names[tree], names[k], v, err)
			}
		}
	}
	for _, i := range []int{0, 2} {
		if v, err := threads[1][i].Load64(ctx, words[1][i]); !errors.Is(err, rdma.ErrTreeLost) {
			t.Errorf("a thread of the struck host's tree on %s: %d, %v", names[i], v, err)
		}
	}
	add(1, 1) // the struck host itself does not know
	for _, tree := range []int{0, 2} {
		for _, i := range []int{0, 2} {
			if err := threads[tree][i].Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, h := range []*host{a, other} {
		h.treeless()
	}
}

// examples/c/counter.c, unchanged: threads of C on two hosts, and one of Go, have one tree.
func TestCounterOfC(t *testing.T) {
	long(t)
	c := start(t, 2, 1)
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed: make test installs it")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "counter")
	for _, args := range [][]string{
		{"sh", "../../contrib/scripts/libexanet.sh", dir},
		{"gcc", "-O2", "-I", dir, "-o", program, "../../examples/c/counter.c", filepath.Join(dir, "libexanet.a"), "-pthread"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	on := func(h *host, args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+filepath.Dir(h.socket))
		return cmd
	}
	a, b := c.hosts[0], c.hosts[1]
	begin := on(a, "begin")
	p := run(t, begin, begin.Start)
	a.wait("the counter prints its token", func() bool { return strings.Contains(p.out.String(), "\n") })
	token := strings.TrimSpace(p.out.String())
	for i, add := range []*exec.Cmd{on(b, "add", token, "10"), command("counter", "-socket", b.socket, "add", token, "10")} {
		if out, err := add.CombinedOutput(); err != nil || string(out) != fmt.Sprintln(10*(i+1)) {
			t.Errorf("%v: %v, %s", add.Args, err, out)
		}
	}
	p.end(syscall.SIGTERM)
	a.treeless()
	b.treeless()
}
