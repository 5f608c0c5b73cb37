package deploy

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// tree makes a tree with a thread on each of the nodes 0 and 1.
func tree(t *testing.T, d *daemon) (th [2]*gsas.Thread) {
	t.Helper()
	for i := range th {
		ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: d.socket, Node: device.NodeID(i), Threads: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ep.Close() })
		if i == 0 {
			th[i], err = gsas.NewThread(ep)
		} else {
			th[i], err = gsas.Join(ep, th[0].Token())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return th
}

// TestThreads: threads of the global shared address space on nodes in another process. Operations send
// no message to the device, and no page is absent in a file but those that nobody has used.
func TestThreads(t *testing.T) {
	l := newPlace(t)
	l.serve()
	d := l.daemon([]int{0, 1}, "--window", "1M")
	th := tree(t, d)
	ctx := t.Context()
	const pages = 1024 // more than the window
	var at [2]gsas.Address
	for node := range at {
		var err error
		if at[node], err = th[0].Alloc(ctx, device.NodeID(node), pages, 0); err != nil {
			t.Fatal(err)
		}
	}
	// Each page comes in by its first operation, goes when the window is full, and keeps its words.
	var all sync.WaitGroup
	for i := range th {
		all.Go(func() {
			for round := range uint64(2) {
				for _, a := range at {
					for p := range gsas.Address(pages) {
						old, err := th[i].FetchAdd(ctx, a+p*device.PageSize+gsas.Address(8*i), 1)
						if err != nil || old != round {
							t.Errorf("page %d at %v: %d, %v; want %d", p, a, old, err, round)
							return
						}
					}
				}
			}
		})
	}
	all.Wait()
	// All of these on both nodes: the words are those of one memory.
	for i, a := range at {
		want := [4]uint64{1, 2, 3, uint64(i)}
		if err := th[i].Store256(ctx, a+64, want); err != nil {
			t.Fatal(err)
		}
		if got, err := th[1-i].Load256(ctx, a+64); err != nil || got != want {
			t.Errorf("%v: %v, %v", a, got, err)
		}
		if old, err := th[1-i].CompareStore256(ctx, a+64, 1, [4]uint64{9, 9, 9, 9}); err != nil || old != want {
			t.Errorf("%v: %v, %v", a, old, err)
		}
		if old, err := th[i].CompareSwap128(ctx, a+64, [2]uint64{9, 9}, [2]uint64{7, 8}); err != nil || old != [2]uint64{9, 9} {
			t.Errorf("%v: %v, %v", a, old, err)
		}
		if m, err := th[i].Map(); err != nil {
			t.Error(err)
		} else {
			if w, err := m.Words(a+64, 4); err != nil || [4]uint64(w) != [4]uint64{7, 8, 9, 9} {
				t.Errorf("mapped: %d, %v", w, err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if alive, err := th[0].Alive(ctx, th[1].ID()); err != nil || !alive {
		t.Errorf("alive: %v, %v", alive, err)
	}
	// Operations on present pages send no message. A look at the counters does.
	messages := func() (sent, awaited float64) {
		return d.metric("exanet_device_messages_total"), d.metric("exanet_device_messages_awaited_total")
	}
	const count = 2000
	s0, w0 := messages()
	s1, w1 := messages()
	for k := range count {
		if _, err := th[0].FetchAdd(ctx, at[k%2]+4000, 1); err != nil {
			t.Fatal(err)
		}
	}
	s2, w2 := messages()
	sent, awaited := s2-s1-(s1-s0), w2-w1-(w1-w0)
	t.Logf("%d operations: %.0f messages, %.0f awaited", count, sent, awaited)
	if sent > count/20 || awaited > count/20 {
		t.Errorf("%d operations: %.0f messages, %.0f awaited", count, sent, awaited)
	}
	// Pages that were freed are nobody's, and zero before they are used again.
	for _, a := range at {
		if err := th[1].Free(ctx, a); err != nil {
			t.Fatal(err)
		}
		if _, err := th[0].Load64(ctx, a); !errors.Is(err, gsas.ErrAddress) {
			t.Errorf("freed: %v", err)
		}
		again, err := th[0].Alloc(ctx, device.NodeID(0), pages, a)
		if err != nil {
			t.Fatal(err)
		}
		for p := range gsas.Address(pages) {
			if v, err := th[0].Load64(ctx, again+p*device.PageSize); err != nil || v != 0 {
				t.Fatalf("page %d: %d, %v", p, v, err)
			}
		}
	}
	for _, x := range th {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	second := tree(t, d) // the next owner of the same memory
	if a, err := second[0].Alloc(ctx, 0, 1, 0); err != nil {
		t.Error(err)
	} else if v, err := second[1].Load64(ctx, a+8); err != nil || v != 0 {
		t.Errorf("another tree's: %d, %v", v, err)
	}
}

// TestThreadsByRegisters: without queues in memory threads are refused.
func TestThreadsByRegisters(t *testing.T) {
	l := newPlace(t)
	l.serve()
	d := l.daemon([]int{0, 1}, "--registers")
	ep, err := rdma.Attach(t.Context(), rdma.Options{Socket: d.socket, Threads: true})
	if err == nil {
		defer ep.Close()
		_, err = gsas.NewThread(ep)
	}
	var r *attach.RefusedError
	if !errors.As(err, &r) || r.Code != attach.CodeUnsupported {
		t.Error(fmt.Errorf("a thread: %w", err))
	}
}
