package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/rdma"
)

// TestRestarts kills the pfd of either side in the midst of writes, reads, messages, and operations on a
// tree, and starts it again under the same numbers. All ends, nothing of it is done in the next life, and
// that one does the same.
func TestRestarts(t *testing.T) {
	long(t)
	c := start(t, 2, 1)
	ctx, cancel := context.WithTimeout(t.Context(), longPatience)
	defer cancel()
	const size, old = 16 << 20, 0xaa
	src := bytes.Repeat([]byte{old}, size)
	var ends [2]*rdma.Endpoint
	var memory [2][2]*fixedMemory // of a host: destination of writes, and of reads
	for i, h := range c.hosts {
		ends[i] = h.attach(0, rdma.Options{})
		memory[i] = [2]*fixedMemory{fixed(t, size), fixed(t, size)}
	}
	clean := func(what string, list ...*fixedMemory) {
		t.Helper()
		for _, m := range list {
			if i := bytes.IndexByte(m.b, old); i >= 0 {
				t.Fatalf("byte %d of the old life is in the memory of %s", i, what)
			}
		}
	}
	for round := range 100 {
		killed, other := round%2, 1-round%2
		h := c.hosts[killed]
		var remotes [2][2]rdma.Remote // of a host: destination of writes, source of reads
		for i := range ends {
			for k, b := range [][]byte{memory[i][0].b, src} {
				var err error
				if remotes[i][k], err = ends[i].Export(b); err != nil {
					t.Fatal(err)
				}
			}
			memory[i][0].renew(t)
			memory[i][1].renew(t)
		}
		adds := newAdders(ctx, t, c.hosts[other], h)
		var transfers [2][]*rdma.Transfer
		for i := range ends {
			for range 3 {
				w, err1 := ends[i].Write(ctx, rdma.WriteRequest{Src: src, Dst: remotes[1-i][0]})
				r, err2 := ends[i].Read(ctx, rdma.ReadRequest{Dst: memory[i][1].b, Src: remotes[1-i][1]})
				if err := errors.Join(err1, err2); err != nil {
					t.Fatal(err)
				}
				transfers[i] = append(transfers[i], w, r)
			}
		}
		adds.progress(t)
		for i := range uint64(20) { // fewer than a mailbox takes
			_, _ = ends[other].Send(ctx, remotes[killed][0], old<<24|i<<32)
			_, _ = ends[killed].Send(ctx, remotes[other][0], old<<24|i<<32)
		}
		h.wait("bytes arrive", func() bool { return h.link(names[other]).BytesReceived > 1<<20 })
		slot := ends[killed].Info().Slot
		h.pfd.end(syscall.SIGKILL)
		memory[killed][0].renew(t)
		memory[killed][1].renew(t)
		h.startPFD()
		_ = ends[killed].Close() // its pfd is gone
		if ends[killed] = h.attach(0, rdma.Options{}); ends[killed].Info().Slot != slot {
			t.Fatalf("slot %d after %d", ends[killed].Info().Slot, slot)
		}
		c.up()
		for i, list := range transfers {
			for _, tr := range list {
				if err := tr.Wait(ctx); ctx.Err() != nil || i == killed && !tr.Poll().Final() {
					t.Fatalf("a transfer of the old life of %s does not end: %v", names[killed], err)
				}
			}
		}
		adds.end()
		if err := adds.errs[1]; !errors.Is(err, rdma.ErrGone) {
			t.Errorf("the thread of the killed pfd: %v", err)
		}
		adds.check(ctx, t, 0) // the word on the other host
		if err := adds.threads[0].Close(); err != nil {
			t.Error(err)
		}
		clean("the new life of "+h.name, memory[killed][0], memory[killed][1])
		// The new life is used from both sides. The bytes that have arrived on the other host are forgotten, and no
		// more come.
		for i := range ends {
			f := newFlow(t, "new life", ends[i], ends[1-i], 100<<10, uint64(2*round+i))
			if err := errors.Join(f.write(ctx), f.read(ctx), newMessage(ctx, f, i == killed)); err != nil {
				t.Fatal(err)
			}
			memory[other][i].renew(t)
		}
		time.Sleep(time.Duration(round) * time.Millisecond)
		clean("the new life of "+h.name, memory[killed][0], memory[killed][1])
		clean(names[other]+" after the old life of "+h.name, memory[other][0], memory[other][1])
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
		if round%20 == 19 {
			t.Logf("%d restarts", round+1)
		}
	}
	for _, h := range c.hosts {
		h.treeless()
		h.unpinned()
	}
}

// newMessage sends a message and receives it. Only an endpoint that lives on may have older ones.
func newMessage(ctx context.Context, f *flow, older bool) error {
	const fresh = 0x55 << 24
	if _, err := f.from.Send(ctx, f.remote, fresh); err != nil {
		return err
	}
	for {
		m, err := f.to.Receive(ctx)
		if err != nil || m.Words[0] == fresh {
			return err
		}
		if !older {
			return fmt.Errorf("a message of the old life: %x", m.Words[:m.N])
		}
	}
}
