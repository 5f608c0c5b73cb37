package hosts

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	files "github.com/exanet/pfd/link/hosts"
	"github.com/exanet/pfd/rdma"
)

// A cable that is cut in the midst of transfers, and repaired, again and again: no transfer fails and no
// byte is wrong. So are connections that are cut by exanetctl.
func TestCable(t *testing.T) {
	c := start(t, 2, 1)
	cuts := 3
	if isLong() {
		cuts = 20 // each lasts until the link has ended; short ones: TestShortCuts
	}
	flows := c.flows(300 << 10)
	stop := load(t, flows...)
	defer stop()
	a := c.hosts[0]
	for range cuts {
		progress(t, 1, flows...)
		before := a.link("b").Connects
		if err := c.mesh.Cut(0, 1); err != nil {
			t.Fatal(err)
		}
		wait(t, "the cut is noticed", func() bool { return a.link("b").State != control.HostUp })
		if err := c.mesh.Repair(0, 1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c.up()
		t.Logf("the link is up %v after its cable", time.Since(began).Round(time.Millisecond))
		if now := a.link("b").Connects; now == before {
			t.Errorf("after %d connections there are %d", before, now)
		}
		progress(t, 1, flows...)
		if _, err := a.client.CutHost(t.Context(), "b", 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		progress(t, 1, flows...)
	}
	c.up()
	stop()
	for _, h := range c.hosts {
		h.unpinned()
	}
}

// A killed exanet-hostd takes nothing with it; a link that breaks meanwhile comes back with the next one.
func TestHostdKilled(t *testing.T) {
	c := start(t, 2, 1)
	a := c.hosts[0]
	flows := c.flows(100 << 10)
	stop := load(t, flows...)
	defer stop()
	for _, h := range c.hosts {
		h.hostd.end(syscall.SIGKILL)
		h.wait("exanet-hostd is missed", func() bool {
			r, err := h.client.Hosts(t.Context())
			return err == nil && !r.Hostd
		})
	}
	progress(t, 2, flows...)
	if l := a.link("b"); l.State != control.HostUp || l.Connects != 1 {
		t.Errorf("without exanet-hostd: %+v", l)
	}
	if _, err := a.client.CutHost(t.Context(), "b", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	a.wait("the link is down", func() bool { return a.link("b").State != control.HostUp })
	for _, h := range c.hosts {
		h.startHostd()
	}
	c.up()
	progress(t, 2, flows...)
}

// A pfd that is stopped for some time, on either side, goes on as if nothing had been.
func TestStopped(t *testing.T) {
	c := start(t, 2, 1)
	stopped, pause := c.hosts[1:], time.Duration(0)
	if isLong() {
		stopped, pause = c.hosts, 30*time.Second
	}
	more, stop := c.work()
	defer stop()
	for _, h := range stopped {
		more()
		other := c.hosts[0]
		if other == h {
			other = c.hosts[1]
		}
		h.pfd.signal(syscall.SIGSTOP)
		other.wait("the stop is noticed", func() bool { return other.link(h.name).State != control.HostUp })
		time.Sleep(pause)
		h.pfd.signal(syscall.SIGCONT)
		c.up()
		more()
	}
	stop()
	for _, h := range c.hosts {
		h.unpinned()
	}
}

// A pfd that is killed in the midst of writes, and started again under the same numbers: the writes end,
// and nothing of them arrives in the memory of the next process at the same address in the same slot.
func TestPfdKilled(t *testing.T) {
	c := start(t, 2, 1)
	a, b := c.hosts[0], c.hosts[1]
	const size = 64 << 20
	from := a.attach(0, rdma.Options{})
	memory := fixed(t, size)
	src := bytes.Repeat([]byte{0xaa}, size)
	for range 2 { // more of them: TestRestarts
		to := b.attach(0, rdma.Options{})
		memory.renew(t)
		remote, err := to.Export(memory.b)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		var list []*rdma.Transfer
		for range 4 {
			tr, err := from.Write(ctx, rdma.WriteRequest{Src: src, Dst: remote})
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, tr)
		}
		b.wait("bytes arrive", func() bool { return b.link("a").BytesReceived > 1<<20 })
		slot := to.Info().Slot
		b.pfd.end(syscall.SIGKILL)
		memory.renew(t)
		b.startPFD()
		next := b.attach(0, rdma.Options{})
		if next.Info().Slot != slot {
			t.Fatalf("slot %d after %d", next.Info().Slot, slot)
		}
		if _, err := next.Export(memory.b); err != nil {
			t.Fatal(err)
		}
		c.up()
		for _, tr := range list {
			if err := tr.Wait(ctx); ctx.Err() != nil {
				t.Fatalf("a transfer into the old life does not end: %v", err)
			}
		}
		if i := bytes.IndexByte(memory.b, 0xaa); i >= 0 {
			t.Fatalf("byte %d of the old life has arrived in the new one", i)
		}
		// The new life can be used.
		f := newFlow(t, "new life", from, next, 100<<10, 1)
		if err := f.write(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if err := next.Close(); err != nil {
			t.Error(err)
		}
		_ = to.Close() // its pfd is gone
	}
}

// Transfers to a host that is struck from the file end with status 10, as do those that begin later.
func TestStruckHost(t *testing.T) {
	c := start(t, 3, 1)
	a, b := c.hosts[0], c.hosts[1]
	from, to := a.attach(0, rdma.Options{}), b.attach(0, rdma.Options{})
	f := newFlow(t, "a to b", from, to, 1<<20, 1)
	other := newFlow(t, "a to c", a.attach(0, rdma.Options{}), c.hosts[2].attach(0, rdma.Options{}), 1<<20, 2)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(f.write(ctx), other.write(ctx)); err != nil {
		t.Fatal(err)
	}
	b.pfd.signal(syscall.SIGSTOP) // so that a transfer is under way
	waiting, err := from.Write(ctx, rdma.WriteRequest{Src: f.src, Dst: f.remote})
	if err != nil {
		t.Fatal(err)
	}
	strike(t, a.dir, "b")
	a.hostd.signal(syscall.SIGHUP)
	if err := waiting.Wait(ctx); !errors.Is(err, rdma.ErrGone) {
		t.Errorf("a transfer to a host that is struck: %v, want status 10", err)
	}
	tr, err := from.Write(ctx, rdma.WriteRequest{Src: f.src, Dst: f.remote})
	if err == nil {
		err = tr.Wait(ctx)
	}
	if !errors.Is(err, rdma.ErrGone) {
		t.Errorf("a new transfer to it: %v, want status 10", err)
	}
	if err := other.write(ctx); err != nil {
		t.Error(err)
	}
	b.pfd.signal(syscall.SIGCONT)
}

// strike removes a host from hosts.toml.
func strike(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, files.FileName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for i, part := range strings.Split(string(text), "\n[[host]]\n") {
		switch {
		case i == 0:
			kept = append(kept, part)
		case !strings.Contains(part, `name = "`+name+`"`):
			kept = append(kept, "\n[[host]]\n"+part)
		}
	}
	if err := os.WriteFile(path, []byte(strings.Join(kept, "")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A drained host takes no new transfers; those under way finish.
func TestDrain(t *testing.T) {
	c := start(t, 2, 1)
	a, b := c.hosts[0], c.hosts[1]
	from, to := a.attach(0, rdma.Options{}), b.attach(0, rdma.Options{})
	f := newFlow(t, "a to b", from, to, 1<<20, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.write(ctx); err != nil {
		t.Fatal(err)
	}
	b.pfd.signal(syscall.SIGSTOP)
	running, err := from.Write(ctx, rdma.WriteRequest{Src: f.src, Dst: f.remote})
	if err != nil {
		t.Fatal(err)
	}
	a.waitOngoing(ctx)
	if _, err := a.client.DrainHost(ctx, "b", true); err != nil {
		t.Fatal(err)
	}
	refused := func() error {
		tr, err := from.Write(ctx, rdma.WriteRequest{Src: f.src, Dst: f.remote})
		if err == nil {
			err = tr.Wait(ctx)
		}
		return err
	}
	if err := refused(); !errors.Is(err, rdma.ErrGone) {
		t.Errorf("a transfer to a host that drains: %v, want status 10", err)
	}
	b.pfd.signal(syscall.SIGCONT)
	if err := running.Wait(ctx); err != nil {
		t.Errorf("a transfer that was under way: %v", err)
	}
	a.waitState("b", control.HostDrained)
	if _, err := a.client.DrainHost(ctx, "b", false); err != nil {
		t.Fatal(err)
	}
	a.waitState("b", control.HostUp)
	if err := f.write(ctx); err != nil {
		t.Error(err)
	}
}
