package gsas_test

import (
	"slices"
	"testing"
	"time"

	"github.com/exanet/pfd/device"
)

// BenchmarkFetchAdd adds to a word of the own node, and of the other one.
func BenchmarkFetchAdd(b *testing.B) {
	r := newRig(b, nil)
	t := r.begin(0)
	for n, name := range []string{"own", "other"} {
		a := r.alloc(t, device.NodeID(n), 1, 0)
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if _, err := t.FetchAdd(b.Context(), a, 1); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[0]), "least-ns/op")
			b.ReportMetric(float64(took[len(took)/10]), "p10-ns/op")
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns/op")
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns/op")
		})
	}
}
