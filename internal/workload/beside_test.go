package workload

import (
	"sync"
	"testing"

	"github.com/exanet/pfd/daemon/control"
)

// Two daemons run at the same time, with transfers in the same slots and PDIDs. Each daemon
// counts only its own.
func TestLiveBeside(t *testing.T) {
	daemons := []*live{startLive(t), startLive(t)}
	if a, b := daemons[0].socket, daemons[1].socket; a == b {
		t.Fatalf("both daemons are on %s", a)
	}
	const count, pages = 20, 4
	var wg sync.WaitGroup
	for i, l := range daemons {
		wg.Go(func() {
			q := Request{Options: l.options(t, "gup", "p1"), Count: count * (i + 1), Size: pages * pageSize, Src: Present, Dst: Absent, Waiting: Wait, Seed: uint64(i)}
			r, err := Run(t.Context(), l.client, q)
			if err != nil || !r.OK() || r.PinnedBytes != 0 {
				t.Errorf("daemon %d: %+v %s, %v", i, r, deref(r.Error), err)
			}
		})
	}
	wg.Wait()
	for i, l := range daemons {
		s, err := l.client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Time-outs of a busy machine may add some. Those of the other daemon must not.
		own, other := uint64(count*(i+1)*pages), uint64(count*(len(daemons)-i)*pages)
		if s.Faults < own || s.Faults >= own+other || s.Socket != l.socket {
			t.Errorf("daemon %d on %s: %d faults, want %d of its own and none of the other's %d", i, s.Socket, s.Faults, own, other)
		}
	}
}

// The fault log holds the last 1024: page, method, kind, the time of each stage
// in its order, and the transfer.
func TestLiveFaultLog(t *testing.T) {
	const depth = 1024 // size of the log
	l := startLive(t)
	for _, method := range []string{"gup", "touch"} {
		t.Run(method, func(t *testing.T) {
			const count, pages = 5, 256
			r, err := Run(t.Context(), l.client, Request{Options: l.options(t, method, "p1"), Count: count, Size: pages * pageSize, Src: Present, Dst: Absent, Waiting: Wait})
			if err != nil || !r.OK() {
				t.Fatalf("%+v %s, %v", r, deref(r.Error), err)
			}
			faults, err := l.client.Faults(t.Context(), 1, depth)
			if err != nil {
				t.Fatal(err)
			}
			if len(faults) != depth {
				t.Fatalf("%v faults after %v, want the last %v", len(faults), r.Faults, depth)
			}
			outcome, kind := "resolved", "minor"
			if method == "touch" {
				outcome = "delegated"
			}
			for i, f := range faults {
				// Nanoseconds after the interrupt.
				stages := []int64{f.DrainedNS, f.StartedNS, f.ResidentNS, f.RAPFNS}
				if method == "touch" {
					// The process pages in: pfd sees neither the begin nor the end.
					stages = []int64{f.DrainedNS, f.RAPFNS}
				} else if f.Kind != kind {
					t.Fatalf("fault %d: %+v: want kind %s", i, f, kind)
				}
				for k, s := range stages {
					if f.TimeNS <= 0 || s < 0 || k > 0 && s < stages[k-1] {
						t.Fatalf("fault %d: stages at %v ns: each comes after the one before", i, stages)
					}
				}
				if f.Node != 1 || f.Page == 0 || f.Page%pageSize != 0 || f.Method != method || f.Policy != "p1" ||
					f.Outcome != outcome || !f.Write || !f.Block || f.SourceNode != 0 {
					t.Fatalf("fault %d: %+v", i, f)
				}
				if i > 0 && f.TimeNS < faults[i-1].TimeNS {
					t.Fatalf("fault %d is older than the one before it", i)
				}
			}
		})
	}
	if control.MaxFaults != depth {
		t.Errorf("a client may ask for %d, want %d", control.MaxFaults, depth)
	}
}
