package sim

import (
	"fmt"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/fault"
)

// BenchmarkEvents reports events a second: each node writes 64 KiB of present memory to others, with
// the costs of the papers' board.
func BenchmarkEvents(b *testing.B) {
	for _, nodes := range []int{2, 16, 64, 256, 1024} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			events := 0
			b.StopTimer()
			for range b.N {
				events += manyWrites(b, nodes, min(nodes, 17)-1)
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds()/1e3, "kevents/s")
		})
	}
}

// manyWrites makes every node of a new world write 64 KiB to peers others, and returns the number of
// events.
func manyWrites(b *testing.B, nodes, peers int) (events int) {
	c := Board()
	w, err := New(Config{Seed: 1, Nodes: nodes, Costs: &c, Policy: fault.PIA, Outstanding: papersOutstanding, TimeoutUS: papersTimeout, GuardUS: 1e6})
	if err != nil {
		b.Fatal(err)
	}
	return writeAll(b, w, peers)
}

// writeAll makes every node write 64 KiB of present memory to peers others, one after the other, until
// nothing happens any more.
func writeAll(tb testing.TB, w *World, peers int) (events int) {
	const size, base = 64 << 10, device.VA(0x7f00_0000_0000)
	nodes := len(w.nodes)
	procs := make([]*Process, nodes)
	for i := range procs {
		var err error
		if procs[i], err = w.Node(i).Attach(1000, base, 2*size/device.PageSize); err != nil {
			tb.Fatal(err)
		}
		procs[i].Touch(0, 2*size)
	}
	left := nodes * peers
	for i, p := range procs {
		next := 1
		write := func() {
			to := (i + next) % nodes
			next++
			p.Write(0, device.Descriptor{Src: base, Dst: base + size, Size: size, DstNode: device.NodeID(to), DstGeneration: procs[to].Domain.Generation})
		}
		p.OnDone = func(_ int, done uint32, status uint8) {
			if done != device.DoneCompleted {
				tb.Fatalf("node %d: status %d", i, status)
			}
			if left--; next <= peers {
				w.after(w.cfg.Costs.Firmware, write)
			}
		}
		w.after(0, write)
	}
	if b, ok := tb.(*testing.B); ok {
		b.StartTimer()
		defer b.StopTimer()
	}
	for w.events.len() > 0 && w.events.next() < 100e9 {
		if err := w.step(); err != nil {
			tb.Fatal(err)
		}
		events++
	}
	if left > 0 {
		tb.Fatalf("%d writes have not ended", left)
	}
	return events
}
