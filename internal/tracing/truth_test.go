package tracing

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/exanet/pfd/trace/probe"
)

// faultsOf returns the number of faults of a long run; PFD_TRACE_FAULTS sets more.
func faultsOf(t *testing.T, short int) int {
	if v := os.Getenv("PFD_TRACE_FAULTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("PFD_TRACE_FAULTS: %v", err)
		}
		return n
	}
	return short
}

// exact compares the maps' counters with pfd's own.
func (r *rig) exact() map[string]uint64 {
	r.t.Helper()
	entries := r.since("exanet_faults_total") - r.since("exanet_faults_duplicate_total")
	c := r.settled(entries)
	for _, tt := range []struct {
		name string
		want uint64
	}{
		{"faults", entries},
		{"pages", r.since("exanet_pages_paged_in_total")},
		{"rapfs", r.since("exanet_rapf_sent_total")},
		{"rapf_fails", r.since("exanet_failed_resolutions_total")},
		{"page_ins", r.since("exanet_page_ins_total")},
		{"bad_records", 0}, {"unreadable", 0}, {"full", 0}, {"crowded", 0},
	} {
		if c[tt.name] != tt.want {
			r.t.Errorf("%s: %d in the map, %d by pfd", tt.name, c[tt.name], tt.want)
		}
	}
	if c["lone"] != 0 || c["joined"] != c["refusals"] || c["joined_faults"]+c["bare"] != c["faults"] {
		r.t.Errorf("not every block has its faults, or not every fault its block: %v", c)
	}
	return c
}

// The maps agree with pfd's counts and with the initiator's own measurements.
func TestTruth(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		// p50 compares the initiator's own figure: one transfer at a time.
		p50 bool
	}{
		{"poll", []string{"--dst", "absent", "--waiting", "poll"}, true},
		{"sleep", []string{"--dst", "absent", "--waiting", "wait"}, true},
		{"source", []string{"--src", "absent"}, false},
		{"both", []string{"--src", "absent", "--dst", "absent"}, false},
		{"cow", []string{"--dst", "cow"}, false},
		{"failing", []string{"--dst", "unmapped"}, false},
		{"touch", []string{"--dst", "absent", "--method", "touch"}, false},
		{"uffd", []string{"--dst", "absent", "--method", "uffd"}, false},
		{"populate", []string{"--dst", "absent", "--method", "populate"}, false},
		{"1MiB", []string{"--dst", "absent", "--size", "1MiB"}, false},
		{"1MiB-pa", []string{"--dst", "absent", "--size", "1MiB", "--policy", "pa"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.on()
			seen := r.follow()
			count := faultsOf(t, 300)
			if tt.name == "1MiB" || tt.name == "1MiB-pa" {
				count = (count + 255) / 256
			}
			res := r.write(append(tt.args, "--count", strconv.Itoa(count))...)
			c := r.exact()
			if c["faults"] < uint64(count) {
				t.Errorf("%d faults of %d transfers", c["faults"], count)
			}
			m := r.maps()
			defer m.Close()
			r.sums(m, seen(c))
			// pfd cannot see a page-in by another process.
			if all := c["kernel_page_ins"] + c["kernel_missed"]; tt.p50 && (all < c["page_ins"] || 1000*c["kernel_missed"] > all) {
				t.Errorf("of %d page-ins the kernel's part is known for %d and missing for %d", c["page_ins"], c["kernel_page_ins"], c["kernel_missed"])
			}
			if tt.p50 {
				r.median(m, res.Latency.P50)
			}
		})
	}
}

// follow reads the events from now on. seen returns them when all counted events have arrived
// or are known to be lost.
func (r *rig) follow() (seen func(counters map[string]uint64) []probe.Event) {
	r.t.Helper()
	m := r.maps()
	ctx, cancel := context.WithCancel(r.t.Context())
	var mu sync.Mutex
	var list []probe.Event
	read := make(chan error, 1)
	go func() {
		read <- m.Events(ctx, probe.Filter{}, func(e probe.Event) error {
			mu.Lock()
			defer mu.Unlock()
			list = append(list, e)
			return nil
		})
	}()
	length := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(list)
	}
	r.until("the reader has started", func() bool { return r.status().Reader != 0 })
	return func(c map[string]uint64) []probe.Event {
		r.t.Helper()
		defer m.Close()
		r.until("all events have arrived", func() bool {
			return uint64(length())+c["events_lost"] >= c["faults"]
		})
		cancel()
		if err := <-read; err != nil {
			r.t.Error(err)
		}
		return list
	}
}

// sums checks that the stages of each fault add up to its total, and that the median by the
// buckets equals that of the events.
func (r *rig) sums(m *probe.Maps, events []probe.Event) {
	r.t.Helper()
	slowest, err := m.Slowest()
	if err != nil {
		r.t.Fatal(err)
	}
	if len(slowest) == 0 {
		r.t.Error("there is no slowest fault")
	}
	var totals []uint64
	for i, e := range append(slices.Clone(events), slowest...) {
		var sum uint64
		for name, ns := range e.StagesNS {
			sum += uint64(ns)
			if e.PreemptedNS[name]+e.SleptNS[name] > ns {
				r.t.Errorf("%s took %d ns, without a processor %d and %d: %+v", name, ns, e.PreemptedNS[name], e.SleptNS[name], e)
			}
		}
		if sum != e.TotalNS {
			r.t.Errorf("stages of %d ns, the total says %d: %+v", sum, e.TotalNS, e)
		}
		if i < len(events) {
			totals = append(totals, e.TotalNS)
		}
	}
	slices.Sort(totals)
	kinds := map[[2]string]bool{}
	for _, e := range events {
		kinds[[2]string{e.Method, e.Kind}] = true
	}
	if len(kinds) != 1 || len(totals) < 100 {
		return // more than one histogram
	}
	list, err := m.Latencies()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range list {
		if l.Stage != "total" || l.Count < 100 {
			continue
		}
		want := float64(totals[(len(totals)-1)/2]) // counted like the buckets' median: neighbouring totals may differ much
		within := .125                             // the width of a bucket
		if os.Getenv("PFD_TRACE_FAULTS") != "" {
			within = .07
		}
		if ratio := float64(l.P50NS) / want; ratio < 1-within || ratio > 1+within {
			r.t.Errorf("the median is %d ns by the buckets, %.0f ns by the events", l.P50NS, want)
		}
	}
}

// median compares the median of the total with the initiator's, which also includes the
// library's work before its time stamp. On a busy machine the two differ much, so only the long
// run has a limit.
func (r *rig) median(m *probe.Maps, us float64) {
	r.t.Helper()
	list, err := m.Latencies()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range list {
		if l.Stage != "total" {
			continue
		}
		ratio := float64(l.P50NS) / 1e3 / us
		r.t.Logf("the median is %.1f us, the initiator's %.1f us", float64(l.P50NS)/1e3, us)
		if os.Getenv("PFD_TRACE_FAULTS") != "" && (ratio < .95 || ratio > 1.05) {
			r.t.Errorf("%.0f %% of what the initiator measured", 100*ratio)
		}
	}
}

// Sixteen processes at once.
func TestTruthSixteen(t *testing.T) {
	r := newRig(t, "--quota", "16")
	r.on()
	var all sync.WaitGroup
	for range 8 { // a pair of initiator and target each
		all.Go(func() { r.write("--dst", "absent", "--size", "64KiB", "--count", "20") })
	}
	all.Wait()
	if c := r.exact(); c["faults"] < 8*20*16 {
		t.Errorf("%v", c)
	}
}

// The histograms include all faults when the events overflow.
func TestOverrun(t *testing.T) {
	r := newRig(t)
	r.on()
	m := r.maps()
	defer m.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := make(chan struct{})
	read := make(chan error, 1)
	go func() {
		read <- m.Events(ctx, probe.Filter{}, func(probe.Event) error {
			<-stuck // the events are not read
			return nil
		})
	}()
	r.until("the reader has started", func() bool { return r.status().Reader != 0 })
	r.write("--dst", "absent", "--count", "7000")
	c := r.exact()
	if c["events_lost"] == 0 {
		t.Errorf("7000 events fit into the buffer: %v", c)
	}
	list, err := m.Latencies()
	if err != nil {
		t.Fatal(err)
	}
	var counted uint64
	for _, l := range list {
		if l.Stage == "total" {
			counted += l.Count
		}
	}
	if counted != c["faults"] {
		t.Errorf("%d faults in the histograms, %d by pfd", counted, c["faults"])
	}
	cancel()
	close(stuck)
	if err := <-read; err != nil {
		t.Error(err)
	}
}
