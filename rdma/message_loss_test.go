package rdma_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// Over a link that loses frames some messages are lost, and nothing else happens: none comes twice, in
// another order, or with other words.
func TestMessagesOverALossyLink(t *testing.T) {
	cfg := daemon.Default()
	cfg.Link.Loss, cfg.Link.Seed, cfg.Socket = 0.01, 1, filepath.Join(t.TempDir(), "pfd.sock")
	m, err := daemon.Emulated(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := daemon.New(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var e [2]*rdma.Endpoint
	for i := range e {
		if e[i], err = rdma.Attach(t.Context(), rdma.Options{Socket: cfg.Socket, Node: device.NodeID(i), AcceptGroup: true}); err != nil {
			t.Fatal(err)
		}
		defer e[i].Close()
	}
	buf := make([]byte, 64)
	to, err := e[1].Export(buf)
	if err != nil {
		t.Fatal(err)
	}
	const n, batch = 5000, 16 // few enough in flight for the mailbox
	now, over := context.WithCancel(t.Context())
	over()
	next, lost := uint64(0), 0
	for i := uint64(0); i < n; i++ {
		// The two lowest bits are the program's: they take each value.
		if _, err := e[0].Send(t.Context(), to, i<<24|i&3, i, ^i); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if i%batch != batch-1 && i != n-1 {
			continue
		}
		// Messages that have not arrived before a later write ends are lost.
		w, err := e[0].Write(t.Context(), rdma.WriteRequest{Src: buf, Dst: to})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := e[1].Receive(now)
			if errors.Is(err, context.Canceled) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			w := m.Words[:m.N]
			if len(w) != 3 || w[1] < next || w[1] > i || w[2] != ^w[1] || w[0] != w[1]<<24|w[1]&3 {
				t.Fatalf("after %d messages, of which %d is next: %x", i, next, w)
			}
			lost += int(w[1] - next)
			next = w[1] + 1
		}
		lost += int(i + 1 - next)
		next = i + 1
	}
	t.Logf("%d of %d messages are lost", lost, n)
	if lost == 0 || lost > n/4 {
		t.Errorf("%d of %d messages are lost, one in a hundred should be", lost, n)
	}
}
