package gsas_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// TestInvariants: the threads of two trees on four nodes, each joined by one that the last one has told the
// token, reach all pages of their own tree and none of the other's (003 §2.2.1, i to iii), also after the
// roots have ended.
func TestInvariants(t *testing.T) { onEach(t, invariants) }

func invariants(t *testing.T, newRig maker) {
	const nodes = 4
	r := newRig(t, func(c *daemon.Config) { c.Nodes = nodes })
	ctx := t.Context()
	var eps [nodes]*rdma.Endpoint
	for i := range eps {
		eps[i] = r.attach(device.NodeID(i))
	}
	var trees [2][]*gsas.Thread
	var pages [2][]gsas.Address
	for tree := range trees {
		root, err := gsas.NewThread(eps[tree])
		r.ok(err)
		trees[tree] = []*gsas.Thread{root}
		for i := range 5 {
			above := trees[tree][len(trees[tree])-1]
			th, err := gsas.Join(eps[(tree+i)%nodes], above.Token())
			r.ok(err)
			trees[tree] = append(trees[tree], th)
		}
		for i, th := range trees[tree] {
			pages[tree] = append(pages[tree], r.alloc(th, device.NodeID(i%nodes), 1, 0))
		}
	}
	check := func(when string) {
		t.Helper()
		for tree, threads := range trees {
			for _, th := range threads {
				for _, a := range pages[tree] {
					if _, err := th.FetchAdd(ctx, a, 1); err != nil {
						t.Errorf("%s: thread %#x of tree %d at its page %v: %v", when, th.ID(), tree, a, err)
					}
				}
				for _, a := range pages[1-tree] {
					if v, err := th.FetchAdd(ctx, a, 1); !errors.Is(err, gsas.ErrProtection) {
						t.Errorf("%s: thread %#x of tree %d at another tree's page %v: %d, %v", when, th.ID(), tree, a, v, err)
					}
				}
			}
			for _, a := range pages[tree] {
				v, err := threads[0].Load64(ctx, a)
				if r.ok(err); v%uint64(len(threads)) != 0 && when == "at first" {
					t.Errorf("%s: %d adds at %v by %d threads", when, v, a, len(threads))
				}
			}
		}
	}
	check("at first")
	for tree := range trees {
		r.ok(trees[tree][0].Close())
		trees[tree] = trees[tree][1:]
	}
	check("after the roots")
}

// TestFreeUnderLoad: when Free returns, no operation changes the page any more, and it is zero when it is
// allocated again, although threads on both nodes write to it all the time until then.
func TestFreeUnderLoad(t *testing.T) { onEach(t, freeUnderLoad) }

func freeUnderLoad(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	ctx := t.Context()
	a := r.begin(0)
	writers := []*gsas.Thread{r.join(0, a), r.join(1, a)}
	for round := range 40 {
		at := r.alloc(a, device.NodeID(round%2), 1, 0)
		var all sync.WaitGroup
		for _, w := range writers {
			began := make(chan struct{})
			all.Go(func() {
				for first := true; ; first = false {
					err := w.Store256(ctx, at, [4]uint64{1, 2, 3, 4})
					if first {
						close(began)
					}
					if errors.Is(err, gsas.ErrAddress) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
			<-began
		}
		r.ok(a.Free(ctx, at))
		all.Wait()
		if again := r.alloc(a, device.NodeID(round%2), 1, at); again != at {
			t.Fatalf("%v is not free", at)
		}
		if v, err := a.Load256(ctx, at); err != nil || v != [4]uint64{} {
			t.Fatalf("round %d: the page has %v after Free, %v", round, v, err)
		}
		r.ok(a.Free(ctx, at))
	}
}

// TestMemories: a user has memory of a limited number of trees and nodes, and gets the next one when a tree
// has ended.
func TestMemories(t *testing.T) {
	const nodes = 64
	r := newRig(t, func(c *daemon.Config) { c.Nodes = nodes })
	ctx := t.Context()
	ep := r.attach(0)
	var trees []*gsas.Thread
	full := func(n int) bool {
		if n%nodes == 0 {
			th, err := gsas.NewThread(ep)
			var refused *attach.RefusedError
			if errors.As(err, &refused) && refused.Code == attach.CodeLimit && len(trees) < attach.MaxThreads {
				return true
			}
			r.ok(err)
			trees = append(trees, th)
		}
		_, err := trees[n/nodes].Alloc(ctx, device.NodeID(n%nodes), 1, 0)
		if errors.Is(err, gsas.ErrRoom) {
			return true
		}
		r.ok(err)
		return false
	}
	memories := 0
	for !full(memories) {
		memories++
	}
	c, err := control.New(r.socket)
	r.ok(err)
	defer c.Close()
	before := len(r.trees(c))
	r.ok(trees[0].Close())
	for len(r.trees(c)) == before {
	}
	next, err := gsas.NewThread(ep)
	r.ok(err)
	for n := range device.NodeID(min(memories, nodes)) {
		r.alloc(next, n, 1, 0)
	}
}
