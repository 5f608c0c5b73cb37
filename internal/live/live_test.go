package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/internal/maybe"
)

func transfers(done, failed, bytes uint64) *control.Transfers {
	return &control.Transfers{Completed: done, Failed: failed, Bytes: bytes}
}

func TestRates(t *testing.T) {
	at := time.Unix(1000, 0)
	before := &look{
		at: at, status: control.Status{PID: 1, UptimeNS: 5e9},
		nodes: []control.Node{{Index: 0, Transfers: transfers(10, 1, 1000)}, {Index: 1}},
		domains: []control.Domain{
			{Node: 0, Slot: 0, Generation: 1, Faults: 5, Transfers: transfers(4, 0, 400)},
			{Node: 0, Slot: 1, Generation: 7, Faults: 90, Transfers: transfers(90, 0, 9000)},
		},
		counters: map[counter]uint64{{0, control.CounterFaults}: 95, {1, control.CounterFaults}: 3, {0, "retransmits_total"}: 2},
		faults:   []control.Fault{{TimeNS: 77}},
	}
	now := &look{
		at: at.Add(2 * time.Second), status: control.Status{PID: 1, UptimeNS: 7e9},
		nodes: []control.Node{{Index: 0, Transfers: transfers(30, 2, 5000)}, {Index: 1}},
		domains: []control.Domain{
			{Node: 0, Slot: 0, Generation: 1, Faults: 15, Transfers: transfers(8, 0, 800)},
			{Node: 0, Slot: 1, Generation: 8, Faults: 2, Transfers: transfers(6, 2, 600)}, // another process: all its counts are new
			{Node: 1, Slot: 3, Faults: 4, Transfers: transfers(2, 0, 20)},
		},
		channels: []control.Channel{
			{Node: 0, Slot: 1, State: control.ChannelOngoing, InFlight: 5, Paused: 2},
			{Node: 0, Slot: 1, Channel: 1, State: control.ChannelOngoing, InFlight: 1},
			{Node: 0, Slot: 0, State: "completed", InFlight: 9},
		},
		fifos:    []control.FIFO{{Name: "rxfifo", Level: 1, Highest: 4, Entries: make([]control.FIFOEntry, 1)}},
		counters: map[counter]uint64{{0, control.CounterFaults}: 101, {1, control.CounterFaults}: 1, {0, "retransmits_total"}: 12},
		faults:   []control.Fault{{TimeNS: 77, Stages: control.FaultStages{Total: 9}}, {TimeNS: 78, RAPFNS: 3, Stages: control.FaultStages{Total: 3}}},
	}
	v := now.view(before)
	unknown := maybe.Unknown()
	for _, c := range []struct {
		name      string
		got, want Rates
	}{
		{"node 0", v.Nodes[0].Rates, Rates{Transfers: 10, Failed: 0.5, Bytes: 2000, Faults: 3, Retransmits: 5}},
		// It has no counts of transfers: its domains have them. A counter that fell was reset,
		// and one that is not disclosed is unknown, not 0.
		{"node 1", v.Nodes[1].Rates, Rates{Transfers: 1, Bytes: 10, Faults: unknown, Retransmits: unknown}},
		{"total", v.Total, Rates{Transfers: 11, Failed: 0.5, Bytes: 2010, Faults: unknown, Retransmits: unknown}},
		{"domain 0/0", v.Domains[0].Rates, Rates{Transfers: 2, Bytes: 200, Faults: 5, Retransmits: unknown}},
		{"domain 0/1", v.Domains[1].Rates, Rates{Transfers: 3, Failed: 1, Bytes: 300, Faults: 1, Retransmits: unknown}},
		{"domain 1/3", v.Domains[2].Rates, Rates{Transfers: 1, Bytes: 10, Faults: 2, Retransmits: unknown}},
	} {
		if fmt.Sprint(c.got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	if d := v.Domains[1]; d.Ongoing != 2 || d.InFlight != 6 || d.Paused != 2 || v.Domains[0].Ongoing != 0 {
		t.Errorf("domain 0/1 %+v, 0/0 %+v", d, v.Domains[0])
	}
	if v.Seconds != 2 || len(v.Channels) != 2 || v.FIFOs[0].Highest != 4 || len(v.FIFOs[0].Entries) != 0 {
		t.Errorf("%+v", v)
	}
	if last := v.Stages[len(v.Stages)-1]; last.Name != "total" || last.Faults != 1 || last.P50NS != 3 {
		t.Errorf("the stages are of %+v, not only of the new fault", last)
	}
	// A restarted pfd has no rates yet.
	for _, other := range []control.Status{{PID: 2, UptimeNS: 6e9}, {PID: 1, UptimeNS: 1e9}} {
		now.status = other
		if v := now.view(before); v.Seconds != 0 || fmt.Sprint(v.Total) != "{- - - - -}" || len(v.Domains) != 3 {
			t.Errorf("after a restart: %+v", v)
		}
	}
}

func TestStages(t *testing.T) {
	var faults []control.Fault
	for i := range int64(100) {
		took := control.FaultStages{Drain: 10 + i, Queue: 1, PageIn: 1000 - i, Answer: 2, Total: 1013}
		faults = append(faults, control.Fault{DrainedNS: 10 + i, StartedNS: 11 + i, ResidentNS: 1011, RAPFNS: 1013 + i/99, Stages: took})
	}
	faults = append(faults, control.Fault{DrainedNS: 5, StartedNS: -1, ResidentNS: -1, RAPFNS: 9}, control.Fault{DrainedNS: -1})
	got := Stages(faults)
	if len(got) != 5 || got[0].Faults != 100 {
		t.Fatalf("%+v", got)
	}
	if want := (Stage{Name: "drain", Faults: 100, P50NS: 59, P99NS: 108, FromNS: 0, ToNS: 59}); got[0] != want {
		t.Errorf("%+v, want %+v", got[0], want)
	}
	if want := (Stage{Name: "page_in", Faults: 100, P50NS: 950, P99NS: 999, FromNS: 60, ToNS: 1011}); got[2] != want {
		t.Errorf("%+v, want %+v", got[2], want)
	}
	if none := Stages(faults[100:]); none == nil || len(none) != 0 {
		t.Errorf("without a resolved fault: %v", none)
	}
}

// A fault that is in flight at the last look counts when it completes; otherwise the slowest
// would never be shown.
func TestStagesOfSlowFault(t *testing.T) {
	at := time.Unix(1000, 0)
	slow := control.Fault{TimeNS: 70, DrainedNS: 1, StartedNS: -1, ResidentNS: -1, RAPFNS: -1}
	quick := control.Fault{TimeNS: 80, DrainedNS: 1, StartedNS: 2, ResidentNS: 3, RAPFNS: 4, Stages: control.FaultStages{Total: 4}}
	before := &look{at: at, faults: []control.Fault{slow, quick}}
	slow.StartedNS, slow.ResidentNS, slow.RAPFNS, slow.Stages.Total = 2, 3000, 3001, 3001
	now := &look{at: at.Add(time.Second), faults: []control.Fault{slow, quick}}
	v := now.view(before)
	if len(v.Stages) == 0 {
		t.Fatal("the slow fault is not shown")
	}
	if last := v.Stages[len(v.Stages)-1]; last.Faults != 1 || last.P99NS != 3001 {
		t.Errorf("%+v, want only the slow fault", last)
	}
}

// A Follower keeps the stages while there are no new faults, restarts with pfd, and returns its
// error.
func TestFollower(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]any{
		control.PathStatus: control.Status{Version: 1, PID: 7}, control.PathNodes: control.Nodes{Version: 1}, control.PathDomains: control.Domains{Version: 1},
		control.PathChannels: control.Channels{Version: 1}, control.PathFIFO: control.FIFOs{Version: 1}, control.PathCounters: control.Counters{Version: 1},
		control.PathFaults: control.Faults{Version: 1, Faults: []control.Fault{{TimeNS: 5, RAPFNS: 1}}},
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewEncoder(w).Encode(answers[r.URL.Path]); err != nil {
			t.Error(err)
		}
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	c, err := control.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	f := Follow(c)
	first, err := f.Next(t.Context())
	if err != nil || first.Seconds != 0 || len(first.Stages) != 5 {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := f.Next(t.Context())
	if err != nil || second.Seconds <= 0 || !reflect.DeepEqual(second.Stages, first.Stages) {
		t.Errorf("%+v, %v", second, err)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	<-done
	c.Close()
	if _, err := f.Next(context.Background()); !errors.Is(err, control.ErrNoDaemon) {
		t.Errorf("pfd is gone: %v", err)
	}
}
