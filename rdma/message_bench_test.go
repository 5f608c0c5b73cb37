package rdma_test

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

func BenchmarkMessage(b *testing.B) {
	for name, to := range map[string]device.NodeID{"node": 0, "another": 1} {
		b.Run(name, func(b *testing.B) {
			socket, stop, err := startPFD()
			if err != nil {
				b.Fatal(err)
			}
			defer stop()
			var e [2]*rdma.Endpoint
			var r [2]rdma.Remote
			for i, n := range []device.NodeID{0, to} {
				if e[i], err = rdma.Attach(b.Context(), rdma.Options{Socket: socket, Node: n, AcceptGroup: true}); err != nil {
					b.Fatal(err)
				}
				defer e[i].Close()
				if r[i], err = e[i].ExportVA(1<<20, 1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e[0].Send(b.Context(), r[1], 0, 1); err != nil {
					b.Fatal(err)
				}
				if _, err := e[1].Receive(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
