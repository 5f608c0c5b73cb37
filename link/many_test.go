package link

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

// long skips a test that is not one of CI.
func long(t *testing.T) {
	if os.Getenv("PFD_HOSTS") == "" {
		t.Skip("takes minutes: make hosts sets PFD_HOSTS")
	}
}

// inUse returns the bytes of heap and stacks.
func inUse() int64 {
	var m runtime.MemStats
	for range 6 { // pools are empty after two, and each makes a stack that is hardly used smaller by half
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// 64 hosts in one process, all connected to all by TLS: their links come up, are closed, and the first frames
// between some hosts bring up the links between these only.
func TestManyHosts(t *testing.T) {
	long(t)
	const n, pairs = 64, 40
	r := newRig(t, n, true)
	var tables []Table
	for i := range n {
		tables = append(tables, r.tableOf(i))
	}
	before := inUse()
	began := time.Now()
	for i := range n {
		r.start(i, tables[i], func(c *Config) { c.Timing = Timing{Heartbeat: time.Second, Idle: 2 * time.Minute, Wake: time.Hour} })
	}
	// count returns how many of the ends of links are in a state.
	count := func(s State) (ends int) {
		for i := range n {
			for _, info := range r.hosts[i].Load().Info() {
				if info.State == s {
					ends++
				}
			}
		}
		return ends
	}
	await := func(s State, want int) {
		t.Helper()
		for end := time.Now().Add(5 * time.Minute); count(s) != want; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d ends of links are %s, want %d", count(s), s, want)
			}
		}
	}
	const all = n * (n - 1)
	await(Up, all)
	t.Logf("%d links are up after %v", all/2, time.Since(began).Round(time.Millisecond))
	time.Sleep(22 * time.Second) // three heartbeats: readers have freed what they do not need
	if up := count(Up); up != all {
		t.Fatalf("%d of %d ends of links are up", up, all)
	}
	t.Logf("a link that is up and carries nothing: %d bytes at each host", (inUse()-before)/all)
	await(Idle, all)
	t.Logf("a link that is idle: %d bytes at each host", (inUse()-before)/all)
	for range 2 {
		used := map[[2]int]bool{}
		var slowest time.Duration
		for len(used) < pairs {
			i, j := rand.IntN(n), rand.IntN(n)
			if i == j {
				continue
			}
			a, b := r.hosts[i].Load(), r.hosts[j].Load()
			seed := byte(len(used))
			began := time.Now()
			a.Send(block(device.NodeID(2*i), device.NodeID(2*j), 4096, seed))
			b.await(t, "frame", func(g got) bool {
				return g.frame != nil && g.frame.SrcNode == device.NodeID(2*i) && g.frame.ID == device.TransactionID(seed)
			})
			if d := time.Since(began); !used[[2]int{min(i, j), max(i, j)}] {
				slowest = max(slowest, d)
			}
			used[[2]int{min(i, j), max(i, j)}] = true
		}
		if up, idle := count(Up), count(Idle); up != 2*pairs || idle != all-2*pairs {
			t.Errorf("after traffic of %d pairs %d ends of links are up and %d idle", pairs, up, idle)
		}
		t.Logf("the first frames of %d pairs took %v at most", pairs, slowest.Round(10*time.Microsecond))
		await(Idle, all)
	}
	for i := range n {
		h := r.hosts[i].Load()
		if slices.ContainsFunc(h.remaining(), func(g got) bool { return g.ready != nil && !*g.ready }) {
			for _, info := range h.Info() {
				if info.Dropped > 0 || info.Bad > 0 {
					t.Errorf("host %s: %+v", h.name, info)
				}
			}
		}
	}
}

// Frames that cross the end of a link over TCP arrive.
func TestIdleCrossingTCP(t *testing.T) {
	long(t)
	r := newRig(t, 2, true)
	quick := func(c *Config) { c.Timing = Timing{Heartbeat: 20 * time.Millisecond, Idle: time.Millisecond} }
	a, b := r.start(0, r.tableOf(0), quick), r.start(1, r.tableOf(1), quick)
	a.awaitReady(t, true)
	b.awaitReady(t, true)
	first := []Info{a.Info()[0], b.Info()[0]} // the first dial may have come too early
	for n := range 1000 {
		time.Sleep(200*time.Millisecond + time.Duration(rand.IntN(200_000))*time.Microsecond)
		a.Send(block(0, 2, 500, byte(n)))
		b.Send(block(2, 0, 500, byte(n)))
		for i, h := range []*host{a, b} {
			for end := time.Now().Add(60 * time.Second); ; {
				g := h.remaining()
				if slices.ContainsFunc(g, func(g got) bool { return g.frame != nil && g.frame.ID == device.TransactionID(byte(n)) }) {
					break
				}
				if now := h.Info()[0]; now.LastErrorAt != first[i].LastErrorAt {
					t.Fatalf("round %d: %+v", n, now)
				}
				if time.Now().After(end) {
					t.Fatalf("round %d: a frame is lost: %+v %+v", n, a.Info(), b.Info())
				}
				time.Sleep(200 * time.Microsecond)
			}
		}
	}
	t.Logf("%d links", a.Info()[0].Connects)
}
