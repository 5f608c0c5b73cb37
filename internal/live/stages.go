package live

import (
	"cmp"
	"slices"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/percentile"
)

// Stage is a part of the way of a fault, with the time that it took the resolved faults.
type Stage struct {
	Name   string `json:"stage"` // by the names of docs/tracing.md
	Faults int    `json:"faults"`
	P50NS  int64  `json:"p50_ns"`
	P99NS  int64  `json:"p99_ns"`
	// Begin and end of the stage in the median fault, after the interrupt.
	FromNS int64 `json:"from_ns"`
	ToNS   int64 `json:"to_ns"`
}

// parts are the stages: how to get the duration of one from a fault, and its begin and end.
var parts = []struct {
	name string
	took func(*control.FaultStages) int64
	at   func(*control.Fault) (from, to int64)
}{
	{"drain", func(s *control.FaultStages) int64 { return s.Drain }, func(f *control.Fault) (int64, int64) { return 0, f.DrainedNS }},
	{"queue", func(s *control.FaultStages) int64 { return s.Queue }, func(f *control.Fault) (int64, int64) { return f.DrainedNS, f.StartedNS }},
	{"page_in", func(s *control.FaultStages) int64 { return s.PageIn }, func(f *control.Fault) (int64, int64) { return f.StartedNS, f.ResidentNS }},
	{"answer", func(s *control.FaultStages) int64 { return s.Answer }, func(f *control.Fault) (int64, int64) { return f.ResidentNS, f.RAPFNS }},
	{"total", func(s *control.FaultStages) int64 { return s.Total }, func(f *control.Fault) (int64, int64) { return 0, f.RAPFNS }},
}

// Stages returns the stages of the resolved faults that went through all of them; none if there
// is no such fault.
func Stages(faults []control.Fault) []Stage {
	whole := []*control.Fault{}
	for i := range faults {
		if f := &faults[i]; f.DrainedNS >= 0 && f.StartedNS >= 0 && f.ResidentNS >= 0 && f.RAPFNS >= 0 {
			whole = append(whole, f)
		}
	}
	stages := []Stage{}
	if len(whole) == 0 {
		return stages
	}
	slices.SortFunc(whole, func(x, y *control.Fault) int { return cmp.Compare(x.RAPFNS, y.RAPFNS) })
	median := whole[(len(whole)-1)/2]
	for _, p := range parts {
		times := make([]int64, len(whole))
		for i, f := range whole {
			times[i] = p.took(&f.Stages)
		}
		slices.Sort(times)
		s := Stage{Name: p.name, Faults: len(whole), P50NS: percentile.Of(times, 50), P99NS: percentile.Of(times, 99)}
		s.FromNS, s.ToNS = p.at(median)
		stages = append(stages, s)
	}
	return stages
}
