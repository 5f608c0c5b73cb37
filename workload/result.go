package workload

import (
	"slices"

	"github.com/exanet/pfd/internal/percentile"
)

// Latency sums up the latencies of the transfers that arrived, microseconds.
// Percentiles are exact (internal/percentile). All are 0 where nothing arrived.
type Latency struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Result is what a run gave; its JSON always has all keys.
type Result struct {
	// Transfers counts the transfers that were begun, Failed those of them that
	// did not arrive.
	Transfers int `json:"transfers"`
	// Bytes arrived, of all transfers together.
	Bytes uint64 `json:"bytes"`
	// Verified is true where transfers were made and, after each, every byte of
	// both buffers and of their guards was what it must be. After a transfer that
	// failed a byte of the destination may be old or new, and must be old where
	// it is read-only.
	Verified bool `json:"verified"`
	Failed   int  `json:"failed"`
	// Error is the first error, nil if there was none.
	Error *string `json:"error"`
	// Faults and PagesPagedIn are those of the two domains, at the source and at
	// the destination, by whatever method.
	Faults       uint64 `json:"faults"`
	PagesPagedIn uint64 `json:"pages_paged_in"`
	// RAPF (received by the initiator's firmware), Retransmits, Timeouts and Guards
	// (blocks that a fault had paused, retransmitted for want of a RAPF) are counters
	// of the initiator's node.
	RAPF        uint64 `json:"rapf"`
	Retransmits uint64 `json:"retransmits"`
	Timeouts    uint64 `json:"timeouts"`
	Guards      uint64 `json:"guards"`
	// PinnedBytes is the largest sum of VmLck and VmPin of initiator, target and
	// pfd, read from /proc at every transfer.
	PinnedBytes int64   `json:"pinned_bytes"`
	Latency     Latency `json:"latency_us"`
	// ThroughputGbps is the bytes that arrived by the time of their transfers,
	// 10^9 bits a second.
	ThroughputGbps float64 `json:"throughput_gbps"`
	Waiting        Waiting `json:"waiting"`
}

// OK tells whether every transfer arrived and every byte was right.
func (r *Result) OK() bool { return r.Error == nil && r.Failed == 0 && r.Verified }

func (r *Result) fail(text string) {
	if r.Error == nil {
		r.Error = &text
	}
}

// summarize sorts ns, the latencies in nanoseconds.
func summarize(ns []int64) Latency {
	if len(ns) == 0 {
		return Latency{}
	}
	slices.Sort(ns)
	at := func(p float64) float64 { return float64(percentile.Of(ns, p)) / 1e3 }
	var sum int64
	for _, n := range ns {
		sum += n
	}
	return Latency{
		P50: at(50), P90: at(90), P99: at(99),
		Mean: float64(sum) / float64(len(ns)) / 1e3,
		Min:  at(0), Max: at(100),
	}
}

// throughput gives 10^9 bits a second: bits by nanoseconds.
func throughput(bytes uint64, ns []int64) float64 {
	var sum int64
	for _, n := range ns {
		sum += n
	}
	if sum == 0 {
		return 0
	}
	return 8 * float64(bytes) / float64(sum)
}
