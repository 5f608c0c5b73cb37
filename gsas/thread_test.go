package gsas_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/serve"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/soc/link"
)

// rig is a pfd with two nodes in this process.
type rig struct {
	testing.TB
	socket string
}

func newRig(t testing.TB, change func(*daemon.Config)) *rig {
	t.Helper()
	cfg := daemon.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "pfd.sock")
	if change != nil {
		change(&cfg)
	}
	return runRig(t, cfg)
}

// newServedRig is newRig with the nodes behind vfio-user sockets.
func newServedRig(t testing.TB, change func(*daemon.Config)) *rig {
	t.Helper()
	cfg := daemon.Default()
	if change != nil {
		change(&cfg)
	}
	dir, err := os.MkdirTemp("", "nodes") // the test's own directory makes too long a socket path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := serve.New(serve.Config{Nodes: cfg.Nodes, Link: cfg.Link})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, dir, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	})
	<-ready
	var sockets []string
	for i := range cfg.Nodes {
		sockets = append(sockets, serve.SocketPath(dir, i))
	}
	cfg.Socket, cfg.Device, cfg.Link = filepath.Join(dir, "pfd.sock"), daemon.DeviceVFIOUser+strings.Join(sockets, ","), link.Options{}
	return runRig(t, cfg)
}

// maker makes a rig.
type maker func(t testing.TB, change func(*daemon.Config)) *rig

// onEach runs a test with the nodes in pfd and behind sockets.
func onEach(t *testing.T, f func(t *testing.T, newRig maker)) {
	t.Run("emu", func(t *testing.T) { f(t, newRig) })
	t.Run("vfio-user", func(t *testing.T) { f(t, newServedRig) })
}

func runRig(t testing.TB, cfg daemon.Config) *rig {
	t.Helper()
	m, err := daemon.Open(t.Context(), cfg)
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
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &rig{t, cfg.Socket}
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// attach attaches to a node.
func (r *rig) attach(n device.NodeID) *rdma.Endpoint {
	r.Helper()
	ep, err := rdma.Attach(r.Context(), rdma.Options{Socket: r.socket, Node: n, Threads: true})
	r.ok(err)
	r.Cleanup(func() { r.ok(ep.Close()) })
	return ep
}

// begin begins a tree on a node, join joins one.
func (r *rig) begin(n device.NodeID) *gsas.Thread {
	r.Helper()
	t, err := gsas.NewThread(r.attach(n))
	r.ok(err)
	return t
}

func (r *rig) join(n device.NodeID, of *gsas.Thread) *gsas.Thread {
	r.Helper()
	t, err := gsas.Join(r.attach(n), of.Token())
	r.ok(err)
	return t
}

func (r *rig) alloc(t *gsas.Thread, n device.NodeID, pages uint64, hint gsas.Address) gsas.Address {
	r.Helper()
	a, err := t.Alloc(r.Context(), n, pages, hint)
	r.ok(err)
	return a
}

// count makes the threads add to a word, several callers each, and checks that each add is done once.
func (r *rig) count(a gsas.Address, adds int, threads ...*gsas.Thread) {
	r.Helper()
	const callers = 3
	var all sync.WaitGroup
	var mu sync.Mutex
	var seen []uint64
	for _, t := range threads {
		for range callers {
			all.Go(func() {
				for range adds {
					old, err := t.FetchAdd(r.Context(), a, 1)
					if err != nil {
						r.Error(err)
						return
					}
					mu.Lock()
					seen = append(seen, old)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	slices.Sort(seen)
	for i, v := range seen {
		if v != uint64(i) {
			r.Fatalf("value %d came from %d: an add was lost or done twice", v, i)
		}
	}
	if v, err := threads[0].Load64(r.Context(), a); err != nil || v != uint64(callers*adds*len(threads)) {
		r.Errorf("the word is %d after %d adds, %v", v, callers*adds*len(threads), err)
	}
}

// TestCounter: threads on two nodes add to words of both.
func TestCounter(t *testing.T) { onEach(t, counter) }

func counter(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	a := r.begin(0)
	b := r.join(1, a)
	if a.Tree() != a.ID() || b.Tree() != a.ID() || b.ID() == a.ID() || b.Node() != 1 {
		t.Errorf("threads %#x and %#x in the trees %#x and %#x", a.ID(), b.ID(), a.Tree(), b.Tree())
	}
	for _, n := range []device.NodeID{0, 1} {
		r.count(r.alloc(a, n, 1, 0), 100, a, b)
	}
	for _, id := range []uint32{a.ID(), b.ID(), b.ID() + 1<<18, 0, ^uint32(0)} {
		if alive, err := b.Alive(t.Context(), id); err != nil || alive != (id == a.ID() || id == b.ID()) {
			t.Errorf("thread %#x is alive: %v, %v", id, alive, err)
		}
	}
}

// TestLoss: with a link that loses frames each operation is still done once.
func TestLoss(t *testing.T) { onEach(t, loss) }

func loss(t *testing.T, newRig maker) {
	r := newRig(t, func(c *daemon.Config) { c.Link.Loss, c.Link.Seed = 0.05, 7 })
	a := r.begin(0)
	b := r.join(1, a)
	r.count(r.alloc(b, 0, 1, 0), 50, a, b)
}

func TestOperations(t *testing.T) { onEach(t, operations) }

func operations(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	ctx := t.Context()
	th := r.begin(1)
	for _, n := range []device.NodeID{0, 1} {
		a := r.alloc(th, n, 2, 0)
		end := a + 2*gsas.PageSize
		check := func(name string, got, want any, err error) {
			t.Helper()
			if err != nil || got != want {
				t.Errorf("node %d: %s: %v, %v, want %v", n, name, got, err, want)
			}
		}
		v, err := th.Load64(ctx, a)
		check("a new word", v, uint64(0), err)
		r.ok(th.Store64(ctx, a, 5))
		v, err = th.FetchAdd(ctx, a, ^uint64(0))
		check("fetch_add", v, uint64(5), err)
		v, err = th.Swap(ctx, a, 0xff)
		check("swap", v, uint64(4), err)
		v, err = th.FetchAnd(ctx, a, 0x3c)
		check("fetch_and", v, uint64(0xff), err)
		v, err = th.FetchOr(ctx, a, 1)
		check("fetch_or", v, uint64(0x3c), err)
		v, err = th.FetchXor(ctx, a, 0xf)
		check("fetch_xor", v, uint64(0x3d), err)
		v, err = th.CompareSwap(ctx, a, 1, 2)
		check("cas of another value", v, uint64(0x32), err)
		v, err = th.CompareSwap(ctx, a, 0x32, 2)
		check("cas", v, uint64(0x32), err)
		v, err = th.Load64(ctx, a)
		check("the word", v, uint64(2), err)

		r.ok(th.Store128(ctx, end-16, [2]uint64{1, 2}))
		w, err := th.CompareSwap128(ctx, end-16, [2]uint64{1, 3}, [2]uint64{8, 8})
		check("cas128 of another value", w, [2]uint64{1, 2}, err)
		w, err = th.CompareSwap128(ctx, end-16, [2]uint64{1, 2}, [2]uint64{3, 4})
		check("cas128", w, [2]uint64{1, 2}, err)
		w, err = th.Load128(ctx, end-16)
		check("two words", w, [2]uint64{3, 4}, err)

		r.ok(th.Store256(ctx, end-32, [4]uint64{1, 2, 3, 4}))
		x, err := th.CompareStore256(ctx, end-32, 2, [4]uint64{})
		check("cwrite256 of another value", x, [4]uint64{1, 2, 3, 4}, err)
		x, err = th.CompareStore256(ctx, end-32, 1, [4]uint64{9, 8, 7, 6})
		check("cwrite256", x, [4]uint64{1, 2, 3, 4}, err)
		x, err = th.Load256(ctx, end-32)
		check("four words", x, [4]uint64{9, 8, 7, 6}, err)
	}
}

// TestErrors: what a thread may not do is an error that can be matched, and changes nothing.
func TestErrors(t *testing.T) { onEach(t, invalid) }

func invalid(t *testing.T, newRig maker) {
	r := newRig(t, func(c *daemon.Config) { c.GSASQuota = 64 * gsas.PageSize })
	ctx := t.Context()
	a, other := r.begin(0), r.begin(1)
	mine, theirs := r.alloc(a, 1, 2, 0), r.alloc(other, 1, 1, 0)
	freed := r.alloc(a, 0, 1, 0)
	r.ok(a.Free(ctx, freed))
	for name, c := range map[string]struct {
		at   gsas.Address
		want error
	}{
		"partition 0":         {gsas.Address(mine.Offset()), gsas.ErrAddress},
		"address 0":           {0, gsas.ErrAddress},
		"misaligned":          {mine + 4, gsas.ErrAddress},
		"behind the pages":    {mine + 2*gsas.PageSize, gsas.ErrAddress},
		"a freed page":        {freed, gsas.ErrAddress},
		"a node that is none": {gsas.At(77, 0), gsas.ErrAddress},
		"another tree's page": {theirs, gsas.ErrProtection},
	} {
		if old, err := a.FetchAdd(ctx, c.at, 1); !errors.Is(err, c.want) || old != 0 {
			t.Errorf("%s: %d, %v, want %v", name, old, err, c.want)
		}
	}
	for name, err := range map[string]error{
		"free inside":              a.Free(ctx, mine+gsas.PageSize),
		"free twice":               a.Free(ctx, freed),
		"128 bits at 8":            a.Store128(ctx, mine+8, [2]uint64{}),
		"256 bits at 16":           a.Store256(ctx, mine+16, [4]uint64{}),
		"no page":                  second(a.Alloc(ctx, 99, 1, 0)),
		"a node beyond the last":   second(a.Alloc(ctx, 1<<16, 1, 0)),
		"alive at no node's":       a.Free(ctx, 7),
		"the page of another tree": second(a.Load64(ctx, mine+7*gsas.PageSize)),
	} {
		if !errors.Is(err, gsas.ErrAddress) {
			t.Errorf("%s: %v, want ErrAddress", name, err)
		}
	}
	if err := a.Free(ctx, theirs); !errors.Is(err, gsas.ErrProtection) {
		t.Errorf("free another tree's page: %v", err)
	}
	for _, pages := range []uint64{0, 62, 65, 1 << 40} {
		if _, err := a.Alloc(ctx, 0, pages, 0); !errors.Is(err, gsas.ErrRoom) {
			t.Errorf("%d pages where 61 are left: %v", pages, err)
		}
	}
	r.alloc(a, 0, 61, 0)
	if v, err := other.Load64(ctx, theirs); v != 0 || err != nil {
		t.Errorf("the other tree's word is %d, %v", v, err)
	}

	// Threads and tokens.
	ep := r.attach(0)
	var refused *attach.RefusedError
	if _, err := gsas.Join(ep, gsas.Token{1}); !errors.As(err, &refused) || refused.Code != attach.CodeNotFound {
		t.Errorf("a guessed token: %v", err)
	}
	if _, err := gsas.Join(ep, gsas.Token{}); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("no token: %v", err)
	}
	for range attach.MaxThreads {
		_, err := gsas.Join(ep, a.Token())
		r.ok(err)
	}
	if _, err := gsas.Join(ep, a.Token()); !errors.As(err, &refused) || refused.Code != attach.CodeLimit {
		t.Errorf("a ninth thread: %v", err)
	}
	plain, err := rdma.Attach(ctx, rdma.Options{Socket: r.socket})
	r.ok(err)
	defer plain.Close()
	if _, err := gsas.NewThread(plain); !errors.Is(err, rdma.ErrRequest) {
		t.Errorf("a thread of an endpoint without: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestFree: pages that come again are zero, where they were asked for.
func TestFree(t *testing.T) { onEach(t, freed) }

func freed(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	ctx := t.Context()
	a := r.begin(0)
	m, err := a.Map()
	r.ok(err)
	defer m.Close()
	for _, n := range []device.NodeID{0, 1} {
		at := r.alloc(a, n, 3, 0)
		for i := range gsas.Address(3) {
			r.ok(a.Store64(ctx, at+i*gsas.PageSize, 7))
		}
		r.ok(a.Free(ctx, at))
		if again := r.alloc(a, n, 2, at+gsas.PageSize); again != at+gsas.PageSize {
			t.Errorf("asked for %v, got %v", at+gsas.PageSize, again)
		}
		if v, err := a.Load64(ctx, at+gsas.PageSize); v != 0 || err != nil {
			t.Errorf("a page that was freed has %d, %v", v, err)
		}
	}
	directory := a.Directory()
	if got := r.alloc(a, 0, 1, directory); got != directory {
		t.Errorf("asked for the directory, got %v", got)
	}
	r.ok(a.Store64(ctx, directory+8, 9))
	w, err := m.Words(directory, 2)
	r.ok(err)
	if w[1] != 9 {
		t.Errorf("the directory has %d in the mapping", w[1])
	}
}

// TestMap: words of the own node that the process changes by itself are those that threads see.
// TestMemoryOfAnEndedTree: nothing stays in memory that a process has mapped when its tree has ended.
func TestMemoryOfAnEndedTree(t *testing.T) { onEach(t, memoryOfAnEndedTree) }

func memoryOfAnEndedTree(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	a := r.begin(0)
	at := r.alloc(a, 0, 64, 0)
	m, err := a.Map()
	r.ok(err)
	defer m.Close()
	words, err := m.Words(at, 64*gsas.PageSize/8)
	r.ok(err)
	for i := range words {
		atomic.StoreUint64(&words[i], 1)
	}
	r.ok(a.Close())
	for i := range words { // in the order in which they are punched, or later
		for atomic.LoadUint64(&words[i]) != 0 {
			if t.Context().Err() != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestMap(t *testing.T) { onEach(t, mapped) }

func mapped(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	a := r.begin(0)
	b := r.join(1, a)
	at, elsewhere := r.alloc(a, 0, 1, 0), r.alloc(a, 1, 1, 0)
	m, err := a.Map()
	r.ok(err)
	defer m.Close()
	words, err := m.Words(at, gsas.PageSize/8)
	r.ok(err)
	const adds = 300
	var both sync.WaitGroup
	both.Go(func() {
		for range adds {
			atomic.AddUint64(&words[3], 1)
		}
	})
	for range adds {
		if _, err := b.FetchAdd(t.Context(), at+24, 1); err != nil {
			t.Fatal(err)
		}
	}
	both.Wait()
	if v := atomic.LoadUint64(&words[3]); v != 2*adds {
		t.Errorf("%d after %d adds", v, 2*adds)
	}
	for name, c := range map[string]struct {
		at gsas.Address
		n  int
	}{
		"another node": {elsewhere, 1}, "partition 0": {gsas.Address(at.Offset()), 1}, "misaligned": {at + 4, 1},
		"beyond the end": {gsas.At(0, 1<<48-8), 2}, "too many": {at, 1 << 62}, "less than none": {at, -1}, "another region": {gsas.At(0, at.Offset()^1<<40), 1},
	} {
		if _, err := m.Words(c.at, c.n); !errors.Is(err, gsas.ErrAddress) {
			t.Errorf("%s: %v, want ErrAddress", name, err)
		}
	}
	r.ok(a.Close())
	if _, err := a.Map(); err == nil {
		t.Error("a closed thread maps memory")
	}
	atomic.AddUint64(&words[3], 1) // and the mapping stays
	r.ok(m.Close())
	r.ok(m.Close())
	if _, err := m.Words(at, 1); !errors.Is(err, gsas.ErrClosed) {
		t.Errorf("words of a closed mapping: %v", err)
	}
}

// TestEnd: a tree outlives its root and ends with its last thread, and its memory with it.
func TestEnd(t *testing.T) {
	r := newRig(t, nil)
	ctx := t.Context()
	c, err := control.New(r.socket)
	r.ok(err)
	defer c.Close()
	ep := r.attach(0)
	a, err := gsas.NewThread(ep)
	r.ok(err)
	b := r.join(1, a)
	at := r.alloc(a, 0, 4, 0)
	r.ok(a.Store64(ctx, at, 1))
	trees, err := c.GSAS(ctx)
	r.ok(err)
	if len(trees) != 1 || len(trees[0].Threads) != 2 || trees[0].SizeBytes != 4*gsas.PageSize || trees[0].Interface != 32 || trees[0].State != control.TreeLive {
		t.Errorf("trees %+v", trees)
	}
	r.ok(a.Close())
	r.ok(a.Close())
	if _, err := a.Load64(ctx, at); !errors.Is(err, gsas.ErrClosed) {
		t.Errorf("an operation of a closed thread: %v", err)
	}
	if v, err := b.FetchAdd(ctx, at, 1); v != 1 || err != nil {
		t.Errorf("a word of a tree whose root has ended: %d, %v", v, err)
	}
	if alive, err := b.Alive(ctx, a.ID()); alive || err != nil {
		t.Errorf("a thread that has ended is alive: %v, %v", alive, err)
	}
	token := b.Token()
	r.ok(b.Close())
	var refused *attach.RefusedError
	if _, err := gsas.Join(ep, token); !errors.As(err, &refused) || refused.Code != attach.CodeNotFound {
		t.Errorf("joining a tree that has ended: %v", err)
	}
	// The memory goes meanwhile.
	for len(trees) > 0 {
		trees, err = c.GSAS(ctx)
		r.ok(err)
	}
	next, err := gsas.NewThread(ep)
	r.ok(err)
	if _, err := next.Load64(ctx, at); !errors.Is(err, gsas.ErrAddress) {
		t.Errorf("an address of a tree that has ended: %v", err)
	}
}

// TestEnds: operations end with their context, their thread and their attachment.
func TestEnds(t *testing.T) { onEach(t, ends) }

func ends(t *testing.T, newRig maker) {
	r := newRig(t, nil)
	a := r.begin(0)
	at := r.alloc(a, 1, 1, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Load64(ctx, at); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := a.Load64(t.Context(), at); err != nil {
		t.Errorf("after that: %v", err)
	}
	ep := r.attach(1)
	b, err := gsas.Join(ep, a.Token())
	r.ok(err)
	var callers sync.WaitGroup
	begun := make(chan struct{}, 8)
	for range 8 {
		callers.Go(func() {
			for first := true; ; first = false {
				_, err := b.FetchAdd(t.Context(), at, 1)
				if first {
					begun <- struct{}{}
				}
				if err != nil {
					if !errors.Is(err, gsas.ErrClosed) {
						t.Errorf("an operation that Close ends: %v", err)
					}
					return
				}
			}
		})
	}
	for range 8 {
		<-begun
	}
	r.ok(b.Close())
	callers.Wait()
	c, err := gsas.Join(ep, a.Token())
	r.ok(err)
	r.ok(ep.Close())
	began := time.Now()
	if _, err := c.Load64(t.Context(), at); !errors.Is(err, rdma.ErrGone) && !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("after the end of the attachment: %v", err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("it took %v", d)
	}
}
