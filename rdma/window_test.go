package rdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// hosts returns a target on a node, which admits nobody, and the endpoints of other groups on nodes
// 0 and 1.
func hosts(t *testing.T, node device.NodeID) (target *rdma.Endpoint, guests []*rdma.Endpoint) {
	t.Helper()
	socket, stop, err := startPFD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for i, o := range []rdma.Options{{Node: node, Group: "target"}, {Node: 0, Group: "guest"}, {Node: 1, Group: "stranger"}} {
		o.Socket = socket
		e, err := rdma.Attach(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		if i == 0 {
			target = e
		} else {
			guests = append(guests, e)
		}
	}
	return target, guests
}

// put writes b to a part of the target's memory and returns the outcome.
func put(t *testing.T, e *rdma.Endpoint, to rdma.Remote, at int, b []byte, notify *rdma.Notification) error {
	t.Helper()
	tr, err := e.Write(t.Context(), rdma.WriteRequest{Src: b, Dst: to, Offset: uint64(at), Notify: notify})
	if err != nil {
		t.Fatal(err)
	}
	return tr.Wait(t.Context())
}

func get(t *testing.T, e *rdma.Endpoint, from rdma.Remote, at int, b []byte) error {
	t.Helper()
	tr, err := e.Read(t.Context(), rdma.ReadRequest{Dst: b, Src: from, Offset: uint64(at)})
	if err != nil {
		t.Fatal(err)
	}
	return tr.Wait(t.Context())
}

// part is the Remote of a part of another's memory.
func part(r rdma.Remote, at, n int) rdma.Remote {
	r.VA += device.VA(at)
	r.Len = uint64(n)
	return r
}

// outcome checks that a transfer was completed, or else refused by its target's domain.
func outcome(t *testing.T, what string, err error, want bool) {
	t.Helper()
	if want != (err == nil) || err != nil && !errors.Is(err, rdma.ErrDomain) {
		t.Errorf("%s: %v; want done: %v", what, err, want)
	}
}

// A peer reaches exactly the window's bytes, and others reach none: each byte before, behind and
// across both edges, by writes, reads and completion words, from the target's node and another.
func TestWindow(t *testing.T) {
	const size, from, n = 3 * 4096, 4099, 4091
	target, guests := hosts(t, 1)
	m, err := target.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	all, err := target.Export(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for i, guest := range guests {
		t.Run(fmt.Sprint("guest of node ", guest.Info().Node), func(t *testing.T) {
			window, err := target.Window(part(all, from, n), guest.Info().PDID, rdma.RightRead|rdma.RightWrite)
			if err != nil {
				t.Fatal(err)
			}
			want := bytes.Repeat([]byte{0xee}, size)
			copy(m.Bytes(), want)
			src := bytes.Repeat([]byte{byte(i + 1)}, size)
			for _, edge := range []int{from, from + n} {
				for at := edge - 3; at <= edge+2; at++ {
					for k := 1; k <= 4; k++ {
						in := at >= from && at+k <= from+n
						what := fmt.Sprintf("%d bytes at %d of a window of %d at %d", k, at, n, from)
						outcome(t, "write "+what, put(t, guest, all, at, src[:k], nil), in)
						outcome(t, "write by another of "+what, put(t, guests[1-i], all, at, src[:k], nil), false)
						if in {
							copy(want[at:at+k], src)
						}
						got := make([]byte, k)
						outcome(t, "read "+what, get(t, guest, all, at, got), in)
						if in && !bytes.Equal(got, want[at:at+k]) {
							t.Errorf("read %s: %x, want %x", what, got, want[at:at+k])
						}
						outcome(t, "read by another of "+what, get(t, guests[1-i], all, at, got), false)
					}
				}
			}
			outcome(t, "write all of it", put(t, guest, all, from, src[:n], nil), true)
			copy(want[from:from+n], src)
			for _, at := range []int{from - from%16, from + 16 - from%16, (from+n)/16*16 - 16, (from + n) / 16 * 16} {
				notify := &rdma.Notification{VA: all.VA + device.VA(at), First: 1, Last: 2}
				in := at >= from && at+16 <= from+n
				outcome(t, fmt.Sprintf("completion words at %d", at), put(t, guest, all, from+64, src[:64], notify), in)
				if in {
					copy(want[at:at+16], "\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00")
				}
				copy(want[from+64:from+128], src)
			}
			if !bytes.Equal(m.Bytes(), want) {
				t.Error("the target's memory holds other bytes than the window admits")
			}
			if err := window.Close(); err != nil {
				t.Fatal(err)
			}
			outcome(t, "write after the withdrawal", put(t, guest, all, from, src[:1], nil), false)
			outcome(t, "read after the withdrawal", get(t, guest, all, from, src[:1]), false)
			if err := window.Close(); !errors.Is(err, rdma.ErrRequest) {
				t.Errorf("closed twice: %v", err)
			}
		})
	}
}

// Each right permits its own access alone; with PDID 0 every peer has it. Windows that overlap add
// up.
func TestWindowRights(t *testing.T) {
	target, guests := hosts(t, 0)
	m, err := target.Alloc(8192)
	if err != nil {
		t.Fatal(err)
	}
	all, err := target.Export(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for rights := rdma.Rights(1); rights <= device.AllRights; rights++ {
		w, err := target.Window(part(all, 0, 4096), 0, rights)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range guests {
			outcome(t, fmt.Sprint("write with rights ", rights), put(t, g, all, 0, make([]byte, 64), nil), rights&rdma.RightWrite != 0)
			outcome(t, fmt.Sprint("read with rights ", rights), get(t, g, all, 0, make([]byte, 64)), rights&rdma.RightRead != 0)
			_, err := g.Send(t.Context(), all, 0, 5)
			if err == nil && rights&rdma.RightMessages == 0 { // told later by another node
				_, err = g.Receive(t.Context())
			}
			if admitted := rights&rdma.RightMessages != 0; admitted != (err == nil) || err != nil && !errors.Is(err, rdma.ErrRefused) {
				t.Errorf("message with rights %v: %v", rights, err)
			} else if admitted {
				if got, err := target.Receive(t.Context()); err != nil || got.PDID != g.Info().PDID || got.Words[1] != 5 {
					t.Errorf("received %+v, %v", got, err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Two windows that touch are one for a transfer across their edge.
	for _, r := range []rdma.Remote{part(all, 0, 1000), part(all, 1000, 1000)} {
		if _, err := target.Window(r, guests[0].Info().PDID, rdma.RightWrite); err != nil {
			t.Fatal(err)
		}
	}
	outcome(t, "write across two windows", put(t, guests[0], all, 0, make([]byte, 2000), nil), true)
	outcome(t, "write past two windows", put(t, guests[0], all, 0, make([]byte, 2001), nil), false)
}

// Bad windows have errors that name them, and the 65th is refused with its code.
func TestBadWindows(t *testing.T) {
	target, guests := hosts(t, 0)
	own, err := target.ExportVA(0x7f0000001003, 5)
	if err != nil {
		t.Fatal(err)
	}
	with := func(f func(*rdma.Remote)) rdma.Remote {
		r := own
		f(&r)
		return r
	}
	other, err := guests[0].ExportVA(own.VA, own.Len)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		r      rdma.Remote
		peer   device.PDID
		rights rdma.Rights
	}{
		"of 0 bytes":                    {with(func(r *rdma.Remote) { r.Len = 0 }), 7, rdma.RightRead},
		"past the end of all addresses": {with(func(r *rdma.Remote) { r.VA = 1<<64 - 1 }), 7, rdma.RightRead},
		"past the node's address space": {with(func(r *rdma.Remote) { r.VA = 1<<48 - 4 }), 7, rdma.RightRead},
		"of another process":            {other, 7, rdma.RightRead},
		"of an earlier domain":          {with(func(r *rdma.Remote) { r.Generation-- }), 7, rdma.RightRead},
		"without a right":               {own, 7, 0},
		"with an unknown right":         {own, 7, 16},
		"for the drivers' PDID":         {own, device.PDIDDriver, rdma.RightRead},
	} {
		if w, err := target.Window(c.r, c.peer, c.rights); !errors.Is(err, rdma.ErrRequest) || !strings.Contains(err.Error(), "memory window") {
			t.Errorf("a window %s: %v, %v", name, w, err)
		}
	}
	// A right that the process itself has not: memory that it shares read-only.
	fd, err := rdma.MakeMemory(8192, 4096)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "memory")
	defer file.Close()
	b, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Share(rdma.VAOf(b), 8192, fd, 0, false); err != nil {
		t.Fatal(err)
	}
	shared, err := target.Export(b)
	if err != nil {
		t.Fatal(err)
	}
	var refused *attach.RefusedError
	if _, err := target.Window(part(shared, 100, 1), 0, rdma.RightRead|rdma.RightWrite); !errors.As(err, &refused) || refused.Code != attach.CodeMemory {
		t.Errorf("a right to write memory that is shared read-only: %v", err)
	}
	if _, err := target.Window(part(shared, 100, 1), 0, rdma.RightRead); err != nil {
		t.Errorf("a right to read it: %v", err)
	}
	var windows []*rdma.Window
	for range device.WindowsPerSlot - 1 {
		w, err := target.Window(own, 0, rdma.RightRead)
		if err != nil {
			t.Fatal(err)
		}
		windows = append(windows, w)
	}
	if _, err := target.Window(own, 0, rdma.RightRead); !errors.As(err, &refused) || refused.Code != attach.CodeLimit || !strings.Contains(err.Error(), "64") {
		t.Errorf("the 65th window: %v", err)
	}
	if err := windows[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := target.Window(own, 0, rdma.RightRead); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := target.Window(own, 0, rdma.RightRead); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("on a closed endpoint: %v", err)
	}
	if err := windows[1].Close(); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("closed after its endpoint: %v", err)
	}
}

// Windows are withdrawn while peers write and read all the time: from then on nothing lands, and
// what the peers read is older. 10^5 rounds with PFD_SOAK=1 (make soak).
func TestWindowWithdrawnUnderLoad(t *testing.T) {
	rounds := 500
	if os.Getenv("PFD_SOAK") != "" {
		rounds = 100_000
	}
	const size, each, marker = 64 << 10, 16 << 10, 0xee
	// The peers spin, and pfd is in this process: without an idle P the runtime looks at sockets
	// every 10 ms.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	target, guests := hosts(t, 0)
	m, err := target.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	all, err := target.Export(m.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	c := contest{}
	c.changed.L = &c.mu
	var wg sync.WaitGroup
	// Two writers and two readers, each with its own part of the memory.
	for k := range c.peers {
		wg.Go(func() {
			guest, at, b := guests[k%2], k*each, bytes.Repeat([]byte{byte(k + 1)}, each)
			word := 0x0101010101010101 * uint64(k+1)
			for c.mayGo(k) {
				var tr *rdma.Transfer
				var err error
				if k < 2 {
					tr, err = guest.Write(t.Context(), rdma.WriteRequest{Src: b[:each-16], Dst: part(all, at, each), Notify: &rdma.Notification{VA: all.VA + device.VA(at+each-16), First: word, Last: word}})
				} else {
					tr, err = guest.Read(t.Context(), rdma.ReadRequest{Dst: b, Src: part(all, at, each)})
				}
				if err == nil {
					err = tr.Wait(t.Context())
				}
				if err == nil && k >= 2 && bytes.IndexByte(b, marker) >= 0 {
					err = errors.New("a read returns bytes that were stored after the withdrawal")
				}
				c.ended(k, err)
			}
		})
	}
	for round := 0; round < rounds && c.failure() == nil; round++ {
		clear(m.Bytes())
		if round%4 == 1 { // pages are absent: blocks wait
			if err := m.Discard(0, size); err != nil {
				t.Fatal(err)
			}
		}
		w, err := target.Window(all, []device.PDID{0, guests[0].Info().PDID}[round%2], rdma.RightRead|rdma.RightWrite)
		if err != nil {
			t.Fatal(err)
		}
		c.next(func() bool { return c.peers[0].done > round%3 && c.peers[2].done > 0 })
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range m.Bytes() {
			m.Bytes()[i] = marker
		}
		c.next(func() bool {
			for _, p := range c.peers {
				if p.refused < 2 {
					return false
				}
			}
			return true
		})
		if bytes.Count(m.Bytes(), []byte{marker}) != size {
			c.ended(0, fmt.Errorf("round %d: bytes have landed after the withdrawal", round))
		}
	}
	c.ended(0, errOver)
	wg.Wait()
	if err := c.failure(); err != errOver {
		t.Error(err)
	}
	t.Logf("%d rounds: %d writes and %d reads, %d refused", rounds, c.sum[0].done+c.sum[1].done, c.sum[2].done+c.sum[3].done,
		c.sum[0].refused+c.sum[1].refused+c.sum[2].refused+c.sum[3].refused)
}

// BenchmarkWindow compares writes of 4 KiB by a process that the target admits with those by one that
// reaches the target through a window, alone or the last of 64, in turns. The metrics are medians.
func BenchmarkWindow(b *testing.B) {
	socket, stop, err := startPFD()
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	var e []*rdma.Endpoint
	// The slots of a node differ by some percent: each kind of writer but the last has two.
	for _, o := range []rdma.Options{{Node: 1, Group: "a", AcceptGroup: true}, {Group: "a"}, {Group: "b"}, {Group: "c"}, {Group: "b"}, {Group: "a"}} {
		o.Socket = socket
		x, err := rdma.Attach(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		defer x.Close()
		e = append(e, x)
	}
	m, err := e[0].Alloc(4096)
	if err != nil {
		b.Fatal(err)
	}
	all, err := e[0].Export(m.Bytes())
	if err != nil {
		b.Fatal(err)
	}
	open := func(r rdma.Remote, peer *rdma.Endpoint) {
		if _, err := e[0].Window(r, peer.Info().PDID, rdma.RightWrite); err != nil {
			b.Fatal(err)
		}
	}
	open(all, e[2])
	open(all, e[4])
	for i := range device.WindowsPerSlot - 3 {
		open(part(all, i, 1), e[3])
	}
	open(all, e[3])
	kinds, kindOf := []string{"admitted", "window", "last-of-64"}, []int{0, 1, 2, 1, 0}
	sources, times := make([][]byte, len(kindOf)), make([][]time.Duration, len(kinds))
	for k := range sources {
		buffer, err := e[k+1].Alloc(4096)
		if err != nil {
			b.Fatal(err)
		}
		sources[k] = buffer.Bytes()
	}
	for b.Loop() {
		for _, k := range rand.Perm(len(kindOf)) {
			began := time.Now()
			tr, err := e[k+1].Write(b.Context(), rdma.WriteRequest{Src: sources[k], Dst: all})
			if err == nil {
				err = tr.Wait(b.Context())
			}
			if err != nil {
				b.Fatal(err)
			}
			times[kindOf[k]] = append(times[kindOf[k]], time.Since(began))
		}
	}
	var median []float64
	for k, name := range kinds {
		slices.Sort(times[k])
		median = append(median, float64(times[k][len(times[k])/2].Nanoseconds()))
		b.ReportMetric(median[k], name+"-ns")
	}
	b.ReportMetric(median[1]/median[0], "window/admitted")
}

// contest is the state of peers that transfer all the time. In a phase in which a peer was refused
// three times it waits for the next phase.
type contest struct {
	mu      sync.Mutex
	changed sync.Cond
	peers   [4]outcomes // of this phase
	sum     [4]outcomes // of the former phases
	err     error       // the first failure, or errOver
}

type outcomes struct{ done, refused int }

var errOver = errors.New("over")

// mayGo reports whether peer k may begin a transfer, when it may; false ends it.
func (c *contest) mayGo(k int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && c.peers[k].refused >= 3 {
		c.changed.Wait()
	}
	return c.err == nil
}

// ended counts a transfer of peer k, or records a failure.
func (c *contest) ended(k int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch p := &c.peers[k]; {
	case err == nil:
		p.done++
	case errors.Is(err, rdma.ErrDomain):
		p.refused++
	case c.err == nil:
		c.err = err
	}
	c.changed.Broadcast()
}

// next begins a phase and waits until f, or a failure.
func (c *contest) next(f func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.peers {
		c.sum[k].done += c.peers[k].done
		c.sum[k].refused += c.peers[k].refused
		c.peers[k] = outcomes{}
	}
	c.changed.Broadcast()
	for c.err == nil && !f() {
		c.changed.Wait()
	}
}

func (c *contest) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
