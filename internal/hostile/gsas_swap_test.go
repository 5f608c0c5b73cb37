package hostile

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/dht"
	"github.com/exanet/pfd/gsas"
	"github.com/exanet/pfd/rdma"
)

// limit sets how many bytes the group may be charged for.
func (g *memoryGroup) limit(bytes int) {
	g.t.Helper()
	for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
		err := os.WriteFile(filepath.Join(g.dir, name), []byte(strconv.Itoa(bytes)), 0)
		if err == nil {
			return
		}
	}
	g.t.Skip("the memory of the control group cannot be limited")
}

// A hash table is four times larger than the memory that pfd may use: its pages go to swap and come back,
// and no value is lost. The swap is a compressed disk in memory, since a machine may have no other.
func TestTableLargerThanMemory(t *testing.T) {
	zramSwap(t, "256M")
	g := newMemoryGroup(t)
	w := start(t)
	const pages = 16 << 8 // of the limit, 16 MiB
	g.add(w.cmd.Process.Pid)
	g.limit(pages * device.PageSize)
	// The first level has 2^n elements of 32 bytes, eight a key.
	table, ctx := (*dht.Table)(nil), w.ctx()
	const keys, values = 4 * pages * 128 / 8, 20_000
	var threads []*gsas.Thread
	for i := range 4 {
		ep, err := rdma.Attach(ctx, rdma.Options{Socket: w.socket(), Node: device.NodeID(i % 2), Threads: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ep.Close() })
		var th *gsas.Thread
		if i == 0 {
			th, err = gsas.NewThread(ep)
		} else {
			th, err = gsas.Join(ep, threads[0].Token())
		}
		if err == nil && i == 0 {
			table, err = dht.Create(ctx, th, "large", dht.Options{Nodes: []device.NodeID{0, 1}, Keys: keys})
		}
		if err != nil {
			t.Fatal(err)
		}
		threads = append(threads, th)
	}
	value := func(key uint64) (v [16]byte) {
		binary.LittleEndian.PutUint64(v[:], key)
		binary.LittleEndian.PutUint64(v[8:], ^key)
		return v
	}
	each := func(n int, f func(table *dht.Table, i uint64) error) {
		t.Helper()
		var all sync.WaitGroup
		for k, th := range threads {
			own, err := dht.Open(ctx, th, "large")
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				for i := k; i < n && !t.Failed(); i += len(threads) {
					if err := f(own, uint64(i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if all.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	each(values, func(table *dht.Table, i uint64) error { return table.Put(ctx, i, value(i)) })
	swapped := func() uint64 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			t.Fatal(err)
		}
		return (info.Totalswap - info.Freeswap) * uint64(info.Unit)
	}
	trees, err := w.GSAS(ctx)
	if err != nil {
		t.Fatal(err)
	}
	size := trees[0].SizeBytes
	if used := g.usage(); used > pages*device.PageSize || size < 4*pages*device.PageSize {
		t.Errorf("a table of %d bytes, and pfd is charged for %d", size, used)
	}
	if n := swapped(); n == 0 {
		t.Error("nothing is in swap")
	}
	times := make([]time.Duration, 2_000)
	order := rand.New(rand.NewPCG(32, 4)).Perm(values)
	each(len(times), func(table *dht.Table, i uint64) error {
		key := uint64(order[i])
		began := time.Now()
		got, ok, err := table.Get(ctx, key)
		times[i] = time.Since(began)
		if want := value(key); err == nil && (!ok || !bytes.Equal(got[:], want[:])) {
			t.Errorf("key %d is %x, %v", key, got, ok)
		}
		return err
	})
	slices.Sort(times)
	n, err := table.Len(ctx)
	t.Logf("%d keys, %d bytes, %d in swap; gets: p50 %v, p90 %v, p99 %v; %v", n, size, swapped(), times[len(times)/2], times[len(times)*9/10], times[len(times)*99/100], err)
}
