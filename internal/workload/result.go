package workload

import (
	"slices"

	"github.com/exanet/pfd/internal/maybe"
	"github.com/exanet/pfd/internal/percentile"
)

// Latency summarizes the latencies of the transfers that arrived, in microseconds.
// Percentiles are exact (internal/percentile). All values are unknown if nothing arrived;
// P90 and P99 are also unknown for fewer than MinSamples samples.
type Latency struct {
	P50  maybe.Number `json:"p50"`
	P90  maybe.Number `json:"p90"`
	P99  maybe.Number `json:"p99"`
	Mean maybe.Number `json:"mean"`
	Min  maybe.Number `json:"min"`
	Max  maybe.Number `json:"max"`
}

// MinSamples is the smallest number of samples for which P90 and P99 are reported.
const MinSamples = 20

// Result is the result of a run. Its JSON always has all keys; an unknown value is null.
type Result struct {
	// Transfers counts the transfers that were started, Failed those of them that
	// did not arrive.
	Transfers int `json:"transfers"`
	// Bytes is the number of bytes that arrived in all transfers.
	Bytes uint64 `json:"bytes"`
	// Verified reports that transfers were made and that, after each, every byte of
	// both buffers and of their guards was correct. After a failed transfer a byte of
	// the destination may be old or new; if the buffer is read-only it must be old.
	Verified bool `json:"verified"`
	Failed   int  `json:"failed"`
	// Error is the first error, or nil.
	Error *string `json:"error"`
	// Faults and PagesPagedIn are the sums over the two domains, at the source and at
	// the destination, for every method.
	Faults       maybe.Number `json:"faults"`
	PagesPagedIn maybe.Number `json:"pages_paged_in"`
	// RAPF (received by the firmware), Retransmits, Timeouts and Guards (blocks paused by a
	// fault and retransmitted because no RAPF came) are counters of CountersNode, which
	// sends the data. pfd shows them only to root and to its own user.
	RAPF        maybe.Number `json:"rapf"`
	Retransmits maybe.Number `json:"retransmits"`
	Timeouts    maybe.Number `json:"timeouts"`
	Guards      maybe.Number `json:"guards"`
	// PinnedBytes is the largest sum of VmLck and VmPin of initiator, target and
	// pfd, read from /proc at every transfer. It is unknown if /proc does not show pfd.
	PinnedBytes maybe.Number `json:"pinned_bytes"`
	Latency     Latency      `json:"latency_us"`
	// ThroughputGbps is the bytes that arrived, divided by the sum of their transfers'
	// latencies, in 10^9 bits a second.
	ThroughputGbps maybe.Number `json:"throughput_gbps"`
	Waiting        Waiting      `json:"waiting"`
	// FolioBytes is how much comes in at the first touch; it is unknown if folios were not
	// requested. SinglePages says why that is a single page, or is nil.
	FolioBytes  maybe.Number `json:"folio_bytes"`
	SinglePages *string      `json:"single_pages"`
	Folio       Folio        `json:"-"` // both
	// CountersNode is the node of the counters above. CountersOthers is the number of
	// other domains on it before or after the run; the counters include their transfers.
	CountersNode   int          `json:"counters_node"`
	CountersOthers maybe.Number `json:"counters_others"`
}

// newResult returns a Result in which nothing is known yet.
func newResult(q *Request) Result {
	r := Result{Waiting: q.Waiting, CountersNode: q.From, Latency: summarize(nil), ThroughputGbps: maybe.Unknown(), FolioBytes: maybe.Unknown(), PinnedBytes: maybe.Unknown()}
	if q.Read {
		r.CountersNode = q.To // it sends the blocks
	}
	r.unknown()
	return r
}

// counts returns the counters for which a run reports the difference.
func (r *Result) counts() [6]*maybe.Number {
	return [...]*maybe.Number{&r.Faults, &r.PagesPagedIn, &r.RAPF, &r.Retransmits, &r.Timeouts, &r.Guards}
}

// unknown marks all counters as unknown.
func (r *Result) unknown() {
	for _, n := range r.counts() {
		*n = maybe.Unknown()
	}
	r.CountersOthers = maybe.Unknown()
}

// OK reports whether every transfer arrived and every byte was correct.
func (r *Result) OK() bool { return r.Error == nil && r.Failed == 0 && r.Verified }

func (r *Result) fail(text string) {
	if r.Error == nil {
		r.Error = &text
	}
}

// summarize returns the summary of latencies in nanoseconds. It sorts ns.
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

// throughput returns 10^9 bits a second, which is bits divided by nanoseconds.
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
