package sim

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
)

// BenchmarkEvents reports events a second, and the memory of a node at the end: each node writes 64 KiB of
// present memory to 16 others (4096 nodes: to 64) in turns, with the costs of the papers' board.
func BenchmarkEvents(b *testing.B) {
	const transfers = 20_000 // of all nodes, at least
	for _, nodes := range []int{2, 16, 64, 256, 1024, 4096} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			peers := min(nodes, 17) - 1
			if nodes == 4096 {
				peers = 64
			}
			var before, after runtime.MemStats
			events, took := 0, time.Duration(0)
			for range b.N {
				runtime.GC()
				runtime.ReadMemStats(&before)
				w := manyNodes(b, nodes)
				n, d := writeAll(b, w, peers, max(peers, transfers/nodes))
				events, took = events+n, took+d
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(w)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1024/float64(nodes), "KiB/node")
			b.ReportMetric(float64(events)/took.Seconds()/1e3, "kevents/s")
		})
	}
}

func manyNodes(b *testing.B, nodes int) *World {
	c := Board()
	w, err := New(Config{Seed: 1, Nodes: nodes, Costs: &c, Policy: fault.PIA, Outstanding: papersOutstanding, TimeoutUS: papersTimeout, GuardUS: 1e6})
	if err != nil {
		b.Fatal(err)
	}
	return w
}

// writeAll makes every node write each times 64 KiB of present memory to peers others in turns, until
// nothing happens any more. took is without the preparation.
func writeAll(tb testing.TB, w *World, peers, each int) (events int, took time.Duration) {
	const size, base = 64 << 10, device.VA(0x7f00_0000_0000)
	nodes := len(w.nodes)
	procs := make([]*Process, nodes)
	for i := range procs {
		var err error
		attach := w.Node(i).Attach
		if nodes > 64 {
			attach = w.Node(i).AttachEmpty
		}
		if procs[i], err = attach(1000, base, 2*size/device.PageSize); err != nil {
			tb.Fatal(err)
		}
		procs[i].Touch(0, 2*size)
	}
	left := nodes * each
	for i, p := range procs {
		next := 1
		write := func() {
			to := (i + 1 + (next-1)%peers) % nodes
			next++
			p.Write(0, device.Descriptor{Src: base, Dst: base + size, Size: size, DstNode: device.NodeID(to), DstGeneration: procs[to].Domain.Generation})
		}
		p.OnDone = func(_ int, done uint32, status uint8) {
			if done != device.DoneCompleted {
				tb.Fatalf("node %d: status %d", i, status)
			}
			if left--; next <= each {
				w.after(w.cfg.Costs.Firmware, write)
			}
		}
		w.after(0, write)
	}
	start := time.Now()
	for w.events.len() > 0 && w.events.next() < 100e9 {
		if err := w.step(); err != nil {
			tb.Fatal(err)
		}
		events++
	}
	if left > 0 {
		tb.Fatalf("%d writes have not ended", left)
	}
	return events, time.Since(start)
}
