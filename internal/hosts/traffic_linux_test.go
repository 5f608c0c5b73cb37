package hosts

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// flow makes transfers between two endpoints of this process, which are on different hosts.
type flow struct {
	name     string
	from, to *rdma.Endpoint
	src      []byte
	dst      *rdma.Buffer
	remote   rdma.Remote
	seed     uint64
	done     atomic.Uint64 // transfers, with every byte checked
}

// newFlow returns a flow of transfers of size bytes.
func newFlow(t *testing.T, name string, from, to *rdma.Endpoint, size int, seed uint64) *flow {
	t.Helper()
	dst, err := to.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	remote, err := to.Export(dst.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return &flow{name: name, from: from, to: to, src: make([]byte, size), dst: dst, remote: remote, seed: seed << 32}
}

// write writes new bytes into absent memory of the target.
func (f *flow) write(ctx context.Context) error {
	f.seed++
	copy(f.src, pattern(len(f.src), f.seed))
	if err := f.dst.Discard(0, (len(f.src)+device.PageSize-1)&^(device.PageSize-1)); err != nil {
		return err
	}
	t, err := f.from.Write(ctx, rdma.WriteRequest{Src: f.src, Dst: f.remote})
	return f.check("write", t, err, ctx)
}

// read reads new bytes of the target.
func (f *flow) read(ctx context.Context) error {
	f.seed++
	clear(f.src)
	copy(f.dst.Bytes(), pattern(len(f.src), f.seed))
	t, err := f.from.Read(ctx, rdma.ReadRequest{Dst: f.src, Src: f.remote})
	return f.check("read", t, err, ctx)
}

// check waits for a transfer and compares all bytes.
func (f *flow) check(what string, t *rdma.Transfer, err error, ctx context.Context) error {
	if err == nil {
		err = t.Wait(ctx)
	}
	if err == nil {
		want := pattern(len(f.src), f.seed)
		for side, got := range map[string][]byte{"initiator": f.src, "target": f.dst.Bytes()} {
			if !bytes.Equal(got, want) {
				err = fmt.Errorf("the %s has other bytes", side)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %s %d: %w", f.name, what, f.done.Load(), err)
	}
	f.done.Add(1)
	return nil
}

// load makes transfers of all flows, writes and reads in turn, until stop is called. It fails the test at
// the first error.
func load(t *testing.T, flows ...*flow) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ending atomic.Bool
	var workers sync.WaitGroup
	for _, f := range flows {
		workers.Go(func() {
			for !ending.Load() {
				err := f.write(ctx)
				if err == nil {
					err = f.read(ctx)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		ending.Store(true)
		late := time.AfterFunc(patience, cancel)
		workers.Wait()
		late.Stop()
		cancel()
	})
}

// progress waits until each flow has made n more transfers.
func progress(t *testing.T, n uint64, flows ...*flow) {
	t.Helper()
	for _, f := range flows {
		goal := f.done.Load() + n
		wait(t, f.name+" makes progress", func() bool { return f.done.Load() >= goal || t.Failed() })
	}
}

// flows returns a flow from each host to each other one, with a pair of endpoints of its own.
func (c *cluster) flows(size int) (list []*flow) {
	c.Helper()
	for i, a := range c.hosts {
		for k, b := range c.hosts {
			if i != k {
				from, to := a.attach(0, rdma.Options{}), b.attach(0, rdma.Options{})
				list = append(list, newFlow(c.T, a.name+" to "+b.name, from, to, size, uint64(len(list))))
			}
		}
	}
	return list
}

// Writes, reads, messages and streams between all of three hosts, with every byte checked.
func TestTraffic(t *testing.T) {
	c := start(t, 3, 1)
	writes, size := 8, 100<<10+13
	if isLong() {
		writes = 10000 / 6
	}
	ctx, cancel := context.WithTimeout(t.Context(), longPatience)
	defer cancel()
	var workers sync.WaitGroup
	flows := c.flows(size)
	for _, f := range flows {
		workers.Go(func() {
			for range writes {
				for _, transfer := range []func(context.Context) error{f.write, f.read} {
					if err := transfer(ctx); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		workers.Go(func() {
			if err := messages(ctx, f, 50*writes); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		})
	}
	workers.Wait()
	for i, f := range flows {
		workers.Go(func() {
			if err := streamed(ctx, f, 10*i+80, pattern(1<<20, uint64(i))); err != nil {
				t.Errorf("%s: stream: %v", f.name, err)
			}
		})
	}
	workers.Wait()
	for _, h := range c.hosts {
		h.unpinned()
		s, err := h.client.Status(ctx)
		if err != nil || s.Faults == 0 {
			t.Errorf("%s: %d faults, %v", h.name, s.Faults, err)
		}
		for _, o := range c.hosts {
			if l := h.link(o.name); l.Forged+l.Bad > 0 || o != h && l.Connects != 1 {
				t.Errorf("%s: %+v", h.name, l)
			}
		}
	}
}

// messages sends n numbered messages, one after the other, and checks that each arrives once.
func messages(ctx context.Context, f *flow, n int) error {
	for i := range uint64(n) {
		if _, err := f.from.Send(ctx, f.remote, i<<24, ^i); err != nil { // the lowest bits are not the caller's
			return fmt.Errorf("message %d: %w", i, err)
		}
		m, err := f.to.Receive(ctx)
		if err != nil {
			return fmt.Errorf("receive %d: %w", i, err)
		}
		if m.N != 2 || m.Words[0]>>24 != i || m.Words[1] != ^i {
			return fmt.Errorf("message %d is %x", i, m.Words[:m.N])
		}
	}
	return nil
}

// streamed sends bytes through a stream and back.
func streamed(ctx context.Context, f *flow, port int, want []byte) error {
	l, err := stream.Listen(f.to, fmt.Sprint(":", port))
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return // Dial reports it
		}
		_, _ = io.Copy(c, c) // the reader finds what is missing
		_ = c.Close()
	}()
	c, err := stream.Dial(ctx, f.from, l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	wrote := make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(1, 2))
		for b := want; len(b) > 0; {
			n := min(len(b), 1+r.IntN(1<<r.IntN(18)))
			if _, err := c.Write(b[:n]); err != nil {
				wrote <- err
				return
			}
			b = b[n:]
		}
		wrote <- c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err == nil {
		err = <-wrote
	}
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%d bytes of %d came back, or others", len(got), len(want))
	}
	return err
}
