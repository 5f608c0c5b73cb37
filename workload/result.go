package workload

import (
	"slices"

	"github.com/exanet/pfd/internal/maybe"
	"github.com/exanet/pfd/internal/percentile"
)

// Latency sums up the latencies of the transfers that arrived, microseconds.
// Percentiles are exact (internal/percentile). None is known where nothing arrived, and
// those beside the median not of fewer than MinSamples.
type Latency struct {
	P50  maybe.Number `json:"p50"`
	P90  maybe.Number `json:"p90"`
	P99  maybe.Number `json:"p99"`
	Mean maybe.Number `json:"mean"`
	Min  maybe.Number `json:"min"`
	Max  maybe.Number `json:"max"`
}

// MinSamples is the smallest number of samples whose percentiles say anything.
const MinSamples = 20

// Result is what a run gave; its JSON always has all keys, null for what is not known.
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
	Faults       maybe.Number `json:"faults"`
	PagesPagedIn maybe.Number `json:"pages_paged_in"`
	// RAPF (received by the firmware), Retransmits, Timeouts and Guards (blocks that a
	// fault had paused, retransmitted for want of a RAPF) are counters of CountersNode,
	// which sends the data. Only who sees everything is told them.
	RAPF        maybe.Number `json:"rapf"`
	Retransmits maybe.Number `json:"retransmits"`
	Timeouts    maybe.Number `json:"timeouts"`
	Guards      maybe.Number `json:"guards"`
	// PinnedBytes is the largest sum of VmLck and VmPin of initiator, target and
	// pfd, read from /proc at every transfer. It is not known where /proc does not show pfd.
	PinnedBytes maybe.Number `json:"pinned_bytes"`
	Latency     Latency      `json:"latency_us"`
	// ThroughputGbps is the bytes that arrived by the time of their transfers,
	// 10^9 bits a second.
	ThroughputGbps maybe.Number `json:"throughput_gbps"`
	Waiting        Waiting      `json:"waiting"`
	// CountersNode is the node whose counters are above, and CountersOthers the number
	// of other domains that it had before or after: their transfers are counted, too.
	CountersNode   int          `json:"counters_node"`
	CountersOthers maybe.Number `json:"counters_others"`
}

// newResult gives one of which nothing is known yet.
func newResult(q *Request) Result {
	r := Result{Waiting: q.Waiting, CountersNode: q.From, Latency: summarize(nil), ThroughputGbps: maybe.Unknown(), PinnedBytes: maybe.Unknown()}
	if q.Read {
		r.CountersNode = q.To // the blocks come from there
	}
	r.unknown()
	return r
}

// counts are the counters that are compared with what they were before.
func (r *Result) counts() [6]*maybe.Number {
	return [...]*maybe.Number{&r.Faults, &r.PagesPagedIn, &r.RAPF, &r.Retransmits, &r.Timeouts, &r.Guards}
}

// unknown says of all counters that they are not known.
func (r *Result) unknown() {
	for _, n := range r.counts() {
		*n = maybe.Unknown()
	}
	r.CountersOthers = maybe.Unknown()
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
	none := maybe.Unknown()
	if len(ns) == 0 {
		return Latency{none, none, none, none, none, none}
	}
	slices.Sort(ns)
	at := func(p float64) maybe.Number { return maybe.Number(percentile.Of(ns, p)) / 1e3 }
	var sum int64
	for _, n := range ns {
		sum += n
	}
	l := Latency{
		P50: at(50), P90: none, P99: none,
		Mean: maybe.Number(sum) / maybe.Number(len(ns)) / 1e3,
		Min:  at(0), Max: at(100),
	}
	if len(ns) >= MinSamples {
		l.P90, l.P99 = at(90), at(99)
	}
	return l
}

// throughput gives 10^9 bits a second: bits by nanoseconds.
func throughput(bytes uint64, ns []int64) maybe.Number {
	var sum int64
	for _, n := range ns {
		sum += n
	}
	if sum == 0 {
		return maybe.Unknown()
	}
	return 8 * maybe.Number(bytes) / maybe.Number(sum)
}
