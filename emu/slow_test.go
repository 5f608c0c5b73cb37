package emu

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/soc/smmu"
	"github.com/exanet/pfd/space"
	"golang.org/x/sys/unix"
)

func sleepInKernel(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}

// A slot whose calls sleep, each for less than its lease, is served apart nevertheless. A slot whose
// calls only take long, for example because the engine's thread was preempted, is not.
func TestCallsThatSleepWithinTheirLease(t *testing.T) {
	l := newLive(t)
	l.attach(0, 0)
	slow := func() (yes bool, takeovers uint64) {
		l.on(func() { yes, takeovers = l.slow(l.nodes[0].slots[0]), l.nodes[0].accesses.LeasesLost })
		return yes, takeovers
	}
	sink := new(atomic.Uint64)
	for range 20 {
		l.do(0, false, func() {
			for start := time.Now(); time.Since(start) < 3*time.Millisecond; {
				sink.Add(1)
			}
		}).wait(t)
	}
	yes, lost := slow()
	if yes && lost == 0 {
		t.Error("calls that take long and do not sleep have made the slot slow")
	}
	l.on(func() { l.nodes[0].slots[0].slowUntil = l.clock.seen })
	for round := 0; round < 3; round++ {
		asleep := 0
		for ; asleep < 200; asleep++ {
			if yes, _ := slow(); yes {
				break
			}
			l.do(0, false, func() { sleepInKernel(3 * time.Millisecond) }).wait(t)
		}
		if yes, n := slow(); n != lost && n < 20 { // the machine was so busy that a call outlasted its lease: once more
			lost = n
			round--
		} else if !yes || n != lost {
			t.Fatalf("round %d: after %d calls that sleep the slot is slow: %v; %d leases lost", round, asleep, yes, n)
		}
		// Quick calls do not make up for it: only time does.
		for range 100 {
			l.do(0, false, nil).wait(t)
		}
		if yes, _ := slow(); !yes {
			t.Errorf("round %d: it is slow no more", round)
		}
		if round == 2 {
			break
		}
		l.on(func() {
			s := l.nodes[0].slots[0]
			if len(l.slowUsers) != 1 {
				t.Errorf("%d users are kept, want the slow one", len(l.slowUsers))
			}
			l.slowUsers[99] = l.clock.seen // a former one
			if left := s.slowUntil - l.Now(); left <= 0 || left > int64(slowTime) {
				t.Errorf("slow for %v more, want up to %v", time.Duration(left), slowTime)
			}
			s.slowUntil = l.clock.seen // as if the time had passed
		})
		if yes, _ := slow(); yes {
			t.Errorf("round %d: it is slow though its time has passed", round)
		}
	}
	// A new attachment of the user gets no lease, and one of another user does.
	for _, c := range []struct {
		uid    uint32
		passed bool
		slow   bool
	}{{0, false, true}, {7, false, false}, {0, true, false}} {
		l.on(func() {
			l.Detach(0, 0)
			if c.passed {
				l.slowUsers[c.uid] = l.clock.seen
			}
		})
		l.attach(0, c.uid)
		if yes, _ := slow(); yes != c.slow {
			t.Errorf("a new attachment of uid %d, its time passed %v, begins slow: %v, want %v", c.uid, c.passed, yes, c.slow)
		}
	}
}

// The charge for a slot's sleeping calls decays: a slot whose calls sleep for less than a fiftieth of
// the time is not slow.
func TestSleepIsForgiven(t *testing.T) {
	for _, c := range []struct {
		every time.Duration // one call is found asleep
		after int           // this many make it slow; 0: no number does
	}{
		{lookEvery, 5}, // four, and a little decays between them
		{10 * lookEvery, 5},
		{sleepShare * lookEvery / 2, 7},
		{sleepShare * lookEvery, 0},
		{time.Minute, 0},
	} {
		var s slot
		now, got := int64(time.Hour), 0
		for i := range 1000 {
			if s.slept(now) {
				got = i + 1
				break
			}
			now += int64(c.every)
		}
		if got != c.after {
			t.Errorf("found asleep every %v: slow after %d times, want %d", c.every, got, c.after)
		}
	}
}

// driven is memory of a driver in another process. Its walks hang until they are released; aside counts
// those that are made apart.
type driven struct {
	space.Prompt
	release chan struct{}
	aside   atomic.Int32
}

func (d *driven) Start(_ *space.Op, _ int64, touch bool) space.Step {
	if touch {
		return space.Mapped
	}
	d.aside.Add(1)
	return space.Apart
}

func (d *driven) Run(*space.Op) { <-d.release }

// A slot of a driver in another process, where the owner of the memory is unknown, becomes slow like
// any other: after one of its accesses has lost its lease the next ones are made apart, and delay
// no other.
func TestSlowSlotOfADriverElsewhere(t *testing.T) {
	l := newLive(t)
	d := &driven{release: make(chan struct{})}
	l.on(func() {
		l.nodes[0].outside.Memory = func(slot int, _ smmu.Tables) space.Space {
			if slot == 3 {
				return d
			}
			return space.NewDirect(noMemory{}, nil)
		}
	})
	walk := func(index int) {
		l.on(func() {
			c := l.newCall()
			c.node, c.index, c.op, c.own = l.nodes[0], index, &c.own, space.Op{Kind: space.Walk, Pages: 1}
			l.tasks = append(l.tasks, c)
		})
	}
	walk(3)
	var slow, other bool
	for deadline := time.Now().Add(2 * time.Minute); !slow; time.Sleep(time.Millisecond) {
		if l.on(func() { slow, other = l.nodes[0].sleepers[3].slowUntil > 0, l.nodes[0].sleepers[4].slowUntil > 0 }); time.Now().After(deadline) {
			t.Fatal("the slot is not slow")
		}
	}
	if other {
		t.Error("another slot is slow")
	}
	walk(3)
	walk(4)
	for deadline := time.Now().Add(2 * time.Minute); d.aside.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its next access is made in the way that hangs")
		}
	}
	close(d.release)
}

// After a touch of shared memory that slept, memory that the user shares is not touched for much longer
// than its calls are made apart; other calls that sleep have no such effect.
func TestUnseenForLonger(t *testing.T) {
	for _, c := range []struct{ touch, asleep bool }{{false, true}, {true, true}, {true, false}} {
		l := newLive(t)
		l.attach(0, 7)
		l.attach(1, 8)
		until := func() (first, other int64) {
			l.on(func() { first, other = l.nodes[0].slots[0].unseenUntil, l.nodes[0].slots[1].unseenUntil })
			return first, other
		}
		l.on(func() {
			late := &call{slot: l.nodes[0].slots[0], node: l.nodes[0], asleep: c.asleep}
			if c.touch {
				late.step = space.Mapped
			}
			l.slowDown(late, "test")
		})
		want := func(when string) {
			t.Helper()
			first, other := until()
			if long := first-l.Now() > int64(slowTime); long != (c.touch && c.asleep) || other != 0 {
				t.Errorf("%+v, %s: unseen for %v, another user until %d", c, when, time.Duration(first-l.Now()), other)
			}
		}
		want("at once")
		l.on(func() { l.Detach(0, 0) })
		l.attach(0, 7)
		want("attached anew")
	}
}
