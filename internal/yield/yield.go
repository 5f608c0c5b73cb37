// Package yield keeps the processors (Ps) of goroutines that live in system calls.
package yield

import (
	"runtime"
	"time"
)

// After how many sleeps, and how much time, a goroutine is scheduled again (ours): the
// runtime's bound is 10 ms.
const (
	sleeps = 16
	period = 5 * time.Millisecond
)

// Yield is one goroutine's. From one that it has not scheduled for 10 ms the runtime
// takes the processor (its P) at each look, every 20 us, that finds it in a system call;
// to get it back takes several system calls and the wake-up of a thread each time.
type Yield struct {
	count int
	last  time.Time
}

// Sleep is called before a system call that sleeps. It lets the runtime schedule the
// goroutine where it is time for that. Who sleeps seldom pays nothing: it loses its
// processor anyhow.
func (y *Yield) Sleep() {
	if y.count++; y.count < sleeps {
		return
	}
	now := time.Now()
	if now.Sub(y.last) < period {
		return
	}
	y.count, y.last = 0, now
	runtime.Gosched()
}

// procs is the least GOMAXPROCS of a program whose goroutines live in system calls (ours):
// a P for an engine, for each of its threads that sleeps, for each connection that waits.
const procs = 8

// Spare gives a program idle Ps on a small machine, until restore. While one is idle, a
// goroutine in a system call keeps its P for 10 ms; while none is, it loses it at the
// runtime's next look. After each loss the runtime looks 50 times, every 20 us, and does so
// on a processor where somebody spins: a fifth of that one's time is lost.
func Spare() (restore func()) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(before, procs))
	return func() { runtime.GOMAXPROCS(before) }
}
