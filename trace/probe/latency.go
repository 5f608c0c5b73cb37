package probe

import (
	"cmp"
	"fmt"
	"slices"
)

// Latency is a histogram of one stage, for faults of one method and kind.
type Latency struct {
	Stage  string `json:"stage"`
	Method string `json:"method"`
	Kind   string `json:"kind"`
	Count  uint64 `json:"count"`
	SumNS  uint64 `json:"sum_ns"`
	P50NS  uint64 `json:"p50_ns"`
	P90NS  uint64 `json:"p90_ns"`
	P99NS  uint64 `json:"p99_ns"`
	MaxNS  uint64 `json:"max_ns"`
	// The parts of SumNS during which pfd's thread was preempted or asleep.
	PreemptedNS uint64 `json:"preempted_ns"`
	SleptNS     uint64 `json:"slept_ns"`

	stage probeStage
}

// bucketRange returns the range of a bucket, [from, to).
func bucketRange(b int) (from, to uint64) {
	if b < 8 {
		return uint64(b), uint64(b) + 1
	}
	e := b/8 + 2
	width := uint64(1) << (e - 3)
	from = uint64(1)<<e + uint64(b%8)*width
	return from, from + width
}

// percentile returns the value that percent of the values do not exceed, assuming an even
// distribution within a bucket. It equals the function of probe.c.
func percentile(l *probeLatency, percent uint64) uint64 {
	rank, before := (l.Count*percent+99)/100, uint64(0)
	for b, n := range l.Buckets {
		if n == 0 || before+n < rank {
			before += n
			continue
		}
		from, to := bucketRange(b)
		if b < 8 {
			return from
		}
		return min(from+(to-from)*(rank-before)/n, l.MaxNs)
	}
	return l.MaxNs
}

// Latencies returns the histograms by stage, method and kind.
func (m *Maps) Latencies() ([]Latency, error) {
	var list []Latency
	var k probeLatencyKey
	var v probeLatency
	it := m.maps[latencyMap].Iterate()
	for it.Next(&k, &v) {
		list = append(list, Latency{
			Stage: nameOf(stageNames[:], uint32(k.Stage)), Method: nameOf(methodNames[:], uint32(k.Method)), Kind: nameOf(kindNames[:], uint32(k.Kind)),
			Count: v.Count, SumNS: v.SumNs, MaxNS: v.MaxNs, stage: k.Stage, PreemptedNS: v.PreemptedNs, SleptNS: v.SleptNs,
			P50NS: percentile(&v, 50), P90NS: percentile(&v, 90), P99NS: percentile(&v, 99),
		})
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("map %s: %w", latencyMap, err)
	}
	slices.SortFunc(list, func(a, b Latency) int {
		return cmp.Or(cmp.Compare(a.Method, b.Method), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.stage, b.stage))
	})
	return list, nil
}

// Report has the status and all histograms of a tracer.
type Report struct {
	Status  *Status   `json:"status"`
	Latency []Latency `json:"latency"`
}

// Report reads status and histograms.
func (m *Maps) Report() (*Report, error) {
	s, err := m.Status()
	if err != nil {
		return nil, err
	}
	l, err := m.Latencies()
	return &Report{s, l}, err
}

func nameOf(names []string, v uint32) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%d", v)
}

// Names of the enumerations, as bpftool prints them; a test compares them with the BTF.
var (
	stageNames = [...]string{
		probeStageRing: "ring", probeStageSend: "send", probeStageRaise: "raise", probeStageDrain: "drain",
		probeStageQueue: "queue", probeStagePageIn: "page_in", probeStageAnswer: "answer", probeStageResend: "resend",
		probeStageComplete: "complete", probeStageSeen: "seen", probeStageTotal: "total",
		probeStageKernelEnter: "kernel_enter", probeStageKernelPopulate: "kernel_populate", probeStageKernelLeave: "kernel_leave",
		probeStageReclaim: "reclaim", probeStageLockWait: "lock_wait", probeStageLockOther: "lock_other",
		probeStagePreempted: "preempted", probeStageSlept: "slept", probeStageWakePfd: "wake_pfd", probeStageWakeClient: "wake_client",
		probeStageDelegateRun: "delegate_run", probeStageDelegateTouch: "delegate_touch", probeStageDelegateAnswer: "delegate_answer",
	}
	methodNames  = [...]string{"unknown", "gup", "touch", "uffd", "populate"}
	kindNames    = [...]string{"none", "minor", "major", "permission"}
	halfNames    = [...]string{"", "driver", "sender"}
	outcomeNames = [...]string{"pending", "resolved", "failed", "delegated", "unsent", "removed"}
	sourceNames  = [...]string{
		probeSourceFaultSource: "faults", probeSourceLatencyTable: "latency", probeSourcePageSource: "pages",
		probeSourceFaultAddressSource: "refused-copies", probeSourceReclaimSource: "reclaim", probeSourceLockSource: "locks",
		probeSourceProcessorSource: "processor", probeSourceTouchSource: "touches", probeSourcePopulateSource: "populates",
		probeSourceIommuSource: "iommu",
	}
	counterNames = [...]string{
		"batches", "records", "bad_records", "unreadable", "faults", "failures", "rapfs", "rapf_fails",
		"page_ins", "pages", "blocks", "refusals", "joined", "joined_faults", "lone", "bare", "crowded", "full",
		"stamp_bad", "events_lost", "kernel_page_ins", "kernel_missed",
		"halves", "shared_faults", "iommu_faults",
	}
)

// StageNames returns the stages of a fault in order; the last is the total.
func StageNames() []string { return stageNames[:probeStageTotal+1] }

// SourceNames returns the sources in order.
func SourceNames() []string { return sourceNames[:] }

// CounterNames returns the counters in order.
func CounterNames() []string { return counterNames[:] }
