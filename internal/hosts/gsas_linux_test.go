package hosts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// thread makes a thread on a host, of a new tree if the token is zero.
func (h *host) thread(token gsas.Token) *gsas.Thread {
	h.t.Helper()
	ep, begin := h.attach(0, rdma.Options{Threads: true}), gsas.NewThread
	if token != (gsas.Token{}) {
		begin = func(ep *rdma.Endpoint) (*gsas.Thread, error) { return gsas.Join(ep, token) }
	}
	th, err := begin(ep)
	if err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
	h.t.Cleanup(func() { _ = th.Close() }) // its pfd may be gone
	return th
}

// treeless waits until a host has no tree.
func (h *host) treeless() {
	h.t.Helper()
	h.wait("its trees end", func() bool {
		trees, err := h.client.GSAS(h.t.Context())
		return err == nil && len(trees) == 0
	})
}

// The counter of docs/gsas.md, unchanged: its word is on one host, and a process on the other one adds.
func TestCounter(t *testing.T) {
	c := start(t, 2, 1)
	a, b := c.hosts[0], c.hosts[1]
	begin := command("counter", "-socket", a.socket, "begin")
	p := run(t, begin, begin.Start)
	a.wait("the counter prints its token", func() bool { return strings.Contains(p.out.String(), "\n") })
	token := strings.TrimSpace(p.out.String())
	for i := range 2 {
		out, err := command("counter", "-socket", b.socket, "add", token, "10").CombinedOutput()
		if want := fmt.Sprintln(10 * (i + 1)); err != nil || string(out) != want {
			t.Errorf("%v, %s, want %s", err, out, want)
		}
	}
	wrong, last := strings.TrimSuffix(token, "0"), "1"
	if wrong == token {
		wrong, last = token[:len(token)-1], "0"
	}
	wrong += last
	if out, err := command("counter", "-socket", b.socket, "add", wrong, "1").CombinedOutput(); err == nil || !strings.Contains(string(out), "no such tree") {
		t.Errorf("a wrong token: %v, %s", err, out)
	}
	p.end(syscall.SIGINT)
	a.treeless()
	b.treeless()
}

// Threads of two hosts use pages on both, and a hash table, while the cable is cut again and again: each
// operation is done once. The tree lives until the last thread on any host has ended, and then leaves nothing.
func TestTree(t *testing.T) {
	c := start(t, 2, 1)
	a, b := c.hosts[0], c.hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	root := a.thread(gsas.Token{})
	there, err := root.Alloc(ctx, b.base, 1, 0) // before its pfd knows of the tree
	if err != nil {
		t.Fatal(err)
	}
	here, err := root.Alloc(ctx, a.base, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	member := b.thread(root.Token())
	for h, owner := range map[*host]string{a: "", b: "a"} {
		if trees, err := h.client.GSAS(ctx); err != nil || len(trees) != 1 || trees[0].Owner != owner {
			t.Errorf("host %s: %+v, %v, want one tree of host %q", h.name, trees, err, owner)
		}
	}
	for _, th := range []*gsas.Thread{root, member} {
		for _, id := range []uint32{root.ID(), member.ID()} {
			if alive, err := th.Alive(ctx, id); err != nil || !alive {
				t.Errorf("thread %#x is alive: %v, %v", id, alive, err)
			}
		}
	}
	other, err := gsas.Join(b.attach(0, rdma.Options{Threads: true}), gsas.Token{1: 1, 2: 0x80})
	var refused *attach.RefusedError
	if !errors.As(err, &refused) || refused.Code != attach.CodeNotFound {
		t.Errorf("join without a token: %v, %v", other, err)
	}
	table, err := dht.Create(ctx, root, "words", dht.Options{Nodes: []device.NodeID{a.base, b.base}, Keys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	same, err := dht.Open(ctx, member, "words")
	if err != nil {
		t.Fatal(err)
	}
	var ending atomic.Bool
	var sums [2]atomic.Uint64
	var workers sync.WaitGroup
	for i, w := range []struct {
		th    *gsas.Thread
		table *dht.Table
	}{{root, table}, {member, same}} {
		workers.Go(func() {
			for !ending.Load() {
				n := sums[i].Load()
				_, err1 := w.th.FetchAdd(ctx, here, 1)
				_, err2 := w.th.FetchAdd(ctx, there, 1)
				key, value := uint64(i)<<32|n%64, [16]byte{byte(i), byte(n), byte(n >> 8)}
				err3 := w.table.Put(ctx, key, value)
				v, ok, err4 := w.table.Get(ctx, key)
				if err := errors.Join(err1, err2, err3, err4); err != nil || !ok || v != value {
					t.Errorf("thread %d, round %d: %v, %v, %v", i, n, v, ok, err)
					return
				}
				sums[i].Add(1)
			}
		})
	}
	more := func() {
		for i := range sums {
			goal := sums[i].Load() + 2
			wait(t, "operations are done", func() bool { return sums[i].Load() >= goal || t.Failed() })
		}
	}
	cuts := 2
	if isLong() {
		cuts = 20
	}
	var joined chan error
	for range cuts {
		more()
		if err := c.mesh.Cut(0, 1); err != nil {
			t.Fatal(err)
		}
		wait(t, "the cut is noticed", func() bool { return b.link("a").State != "up" })
		if joined == nil {
			joined = make(chan error, 1)
			ep := b.attach(0, rdma.Options{Threads: true})
			if th, err := ep.NewThread(root.Token()); !errors.As(err, &refused) || refused.Code != attach.CodeBusy {
				t.Errorf("a thread of a tree whose host is not reached: %v, %v", th, err)
			}
			go func() {
				th, err := gsas.Join(ep, root.Token()) // waits for the link
				if err == nil {
					err = th.Close()
				}
				joined <- err
			}()
		}
		if err := c.mesh.Repair(0, 1); err != nil {
			t.Fatal(err)
		}
		c.up()
	}
	if err := <-joined; err != nil {
		t.Errorf("joining over a cut: %v", err)
	}
	more()
	ending.Store(true)
	workers.Wait()
	if err := root.Close(); err != nil {
		t.Error(err)
	}
	if alive, err := member.Alive(ctx, root.ID()); err != nil || alive {
		t.Errorf("the root is alive: %v, %v", alive, err)
	}
	for _, at := range []gsas.Address{here, there} {
		if v, err := member.Load64(ctx, at); err != nil || v != sums[0].Load()+sums[1].Load() {
			t.Errorf("%v: %d, %v, want %d + %d", at, v, err, sums[0].Load(), sums[1].Load())
		}
	}
	if err := member.Close(); err != nil {
		t.Error(err)
	}
	a.treeless()
	b.treeless()
}

// A pfd that is killed takes its trees with it, on all hosts, and the threads that it had of others.
func TestTreeOfAKilledPfd(t *testing.T) {
	c := start(t, 2, 1)
	a, b := c.hosts[0], c.hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	root, own := a.thread(gsas.Token{}), b.thread(gsas.Token{})
	member, guest := b.thread(root.Token()), a.thread(own.Token())
	at, err := member.Alloc(ctx, b.base, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Alloc(ctx, a.base, 1, 0); err != nil {
		t.Fatal(err)
	}
	a.pfd.end(syscall.SIGKILL)
	a.startPFD()
	c.up()
	b.wait("the lost tree ends", func() bool {
		trees, err := b.client.GSAS(ctx)
		return err == nil && len(trees) == 1
	})
	if v, err := member.Load64(ctx, at); !errors.Is(err, gsas.ErrGone) || !errors.Is(err, rdma.ErrTreeLost) {
		t.Errorf("a thread of a lost tree loads %d, %v", v, err)
	}
	if alive, err := own.Alive(ctx, guest.ID()); err != nil || alive {
		t.Errorf("the thread of a pfd that was killed is alive: %v, %v", alive, err)
	}
	again := a.thread(own.Token())
	if _, err := again.Alloc(ctx, a.base, 1, 0); err != nil {
		t.Error(err)
	}
	if err := errors.Join(own.Close(), again.Close(), member.Close()); err != nil {
		t.Error(err)
	}
	b.treeless()
	a.treeless()
}
