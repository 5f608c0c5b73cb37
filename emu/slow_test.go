package emu

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/attach"
	"golang.org/x/sys/unix"
)

func sleepInKernel(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}

// A domain whose calls sleep, each for less than its lease, is served by a worker
// of its own all the same; and the more often it does so, the longer. One whose
// calls only take long, as where the engine's thread had to give way to others, is
// served inline.
func TestCallsThatSleepWithinTheirLease(t *testing.T) {
	e, err := New(Config{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	m, err := attach.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	on := func(f func()) {
		ok := make(chan struct{})
		e.post(func() { f(); close(ok) })
		<-ok
	}
	on(func() {
		if err := e.Attach(0, 0, &Attachment{Pages: m.Pages, Wake: m.WakeFD(), Memory: noMemory{}}); err != nil {
			t.Error(err)
		}
	})
	calls := func(n int, run func()) {
		t.Helper()
		for range n {
			j := newJob(run)
			on(func() { e.nodes[0].bus.Do(0, j, false) })
			j.wait(t)
		}
	}
	slow := func() (yes bool, takeovers uint64) {
		on(func() { yes, takeovers = e.nodes[0].slots[0].slow, e.nodes[0].takeover })
		return yes, takeovers
	}
	sink := new(atomic.Uint64)
	calls(20, func() {
		for start := time.Now(); time.Since(start) < 3*time.Millisecond; {
			sink.Add(1)
		}
	})
	if yes, _ := slow(); yes {
		t.Error("calls that take long and do not sleep have made the domain slow")
	}
	for round := range 3 {
		asleep := 0
		for ; asleep < 50; asleep++ {
			if yes, _ := slow(); yes {
				break
			}
			calls(1, func() { sleepInKernel(3 * time.Millisecond) })
		}
		if yes, n := slow(); !yes || n != 0 {
			t.Fatalf("round %d: after %d calls that sleep the domain is slow: %v; %d leases lost", round, asleep, yes, n)
		}
		quick := 0
		for ; quick < 64*quickCalls; quick++ {
			if yes, _ := slow(); !yes {
				break
			}
			calls(1, nil)
		}
		if want := quickCalls << round; quick < want-1 {
			t.Errorf("round %d: served inline again after %d quick calls, want %d", round, quick, want)
		}
	}
}
