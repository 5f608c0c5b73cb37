package tracing

import (
	"context"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/exanet/pfd/trace/probe"
)

// faultsOf is how many faults the long runs have; PFD_TRACE_FAULTS asks for more.
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

// What the maps say is what pfd counted, and what the initiator measured itself.
func TestTruth(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		// p50 says that the initiator's own figure is compared: one transfer at a time.
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
			r.sums(m)
			// A page-in in a process of its own, or by the process, is not pfd's to see.
			if all := c["kernel_page_ins"] + c["kernel_missed"]; tt.p50 && (all < c["page_ins"] || 1000*c["kernel_missed"] > all) {
				t.Errorf("of %d page-ins the kernel's part is known of %d, and missed of %d", c["page_ins"], c["kernel_page_ins"], c["kernel_missed"])
			}
			if tt.p50 {
				r.median(m, res.Latency.P50)
			}
		})
	}
}

// sums checks that the stages of each of the slowest faults make up its total.
func (r *rig) sums(m *probe.Maps) {
	r.t.Helper()
	list, err := m.Slowest()
	if err != nil {
		r.t.Fatal(err)
	}
	if len(list) == 0 {
		r.t.Error("there is no slowest fault")
	}
	for _, e := range list {
		var sum uint64
		for _, ns := range e.StagesNS {
			sum += uint64(ns)
		}
		if sum != e.TotalNS {
			r.t.Errorf("stages of %d ns, the total says %d: %+v", sum, e.TotalNS, e)
		}
	}
}

// median compares the total's median with the initiator's, which counts a little more:
// what the library does before it stamps. A busy machine puts both far apart from each
// other: the bound is for the long run alone.
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
	for range 8 { // an initiator and a target each
		all.Go(func() { r.write("--dst", "absent", "--size", "64KiB", "--count", "20") })
	}
	all.Wait()
	if c := r.exact(); c["faults"] < 8*20*16 {
		t.Errorf("%v", c)
	}
}

// The histograms are of all faults where the events overrun.
func TestOverrun(t *testing.T) {
	r := newRig(t)
	r.on()
	m := r.maps()
	defer m.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, stuck := make(chan struct{}), make(chan struct{})
	read := make(chan error, 1)
	go func() {
		read <- m.Events(ctx, probe.Filter{}, func(probe.Event) error {
			select {
			case <-first:
			default:
				close(first)
			}
			<-stuck // nobody reads
			return nil
		})
	}()
	r.until("the reader is there", func() bool {
		r.write("--dst", "absent")
		select {
		case <-first:
			return true
		default:
			return false
		}
	})
	r.write("--dst", "absent", "--count", "7000")
	c := r.exact()
	if c["events_lost"] == 0 {
		t.Errorf("7000 events fit into the buffer: %v", c)
	}
	cancel()
	close(stuck)
	if err := <-read; err != nil {
		t.Error(err)
	}
}
