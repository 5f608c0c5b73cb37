package owner

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	const us = int64(time.Microsecond)
	p := NewPatience(50*time.Microsecond, time.Millisecond)
	offers, others := 0, int64(0)
	yield := func() int64 { offers++; return others }
	// look returns after how many microseconds the owner sleeps.
	look := func(now int64) int64 {
		p.Busy()
		for at := now; ; at += us {
			if p.Idle(at, false, yield) {
				return (at - now) / us
			}
		}
	}
	if got := look(0); got != 50 || offers != 1 {
		t.Errorf("it polls for %d us with %d yields, want 50 and 1", got, offers)
	}
	// Work that arrives soon makes it poll longer, up to the maximum.
	for _, want := range []int64{100, 200, 400, 800, 1000, 1000} {
		p.Slept(10 * us)
		if got := look(0); got != want {
			t.Errorf("it polls for %d us, want %d", got, want)
		}
	}
	offers = 0
	if look(0); offers != 10 { // at 20, 120, ... 920 us
		t.Errorf("%d yields in a millisecond, want 10", offers)
	}
	p.Slept(int64(time.Second))
	if got := look(0); got != 50 {
		t.Errorf("after a long sleep it polls for %d us, want 50", got)
	}
	// Another thread wakes, polls and sleeps again: no reason to sleep.
	others = 30 * us
	if got := look(0); got != 50 {
		t.Errorf("it polls for %d us beside a thread that only wakes, want 50", got)
	}
	// Another thread works: the owner is in its way, for a while.
	others = 3000 * us
	if got := look(0); got != 21 {
		t.Errorf("it polls for %d us on a crowded processor, want 21", got)
	}
	at := int64(20 * us)
	for _, avoid := range []time.Duration{2, 4, 8, 16, 32, 64, 100, 100} {
		at += others // the offer took so long
		for _, d := range []int64{0, int64(avoid*time.Millisecond) - us} {
			if got := look(at + d); got != 0 {
				t.Errorf("it polls for %d us %d us after it found contention, want 0", got, d/us)
			}
		}
		at += int64(avoid * time.Millisecond)
		if got := look(at); got != 21 {
			t.Errorf("%d ms after it polls for %d us, want 21", avoid, got)
		}
		at += 20 * us
	}
	at += others + int64(mostCrowded)
	others = 0
	if got := look(at); got != 50 || p.avoid != 0 {
		t.Errorf("it polls for %d us once the processor is free, want 50", got)
	}
	// No polling at all.
	p = NewPatience(-1, time.Millisecond)
	if got := look(0); got != 0 {
		t.Errorf("it polls for %d us, want 0", got)
	}
}
