// Package yield keeps the processors (Ps) of goroutines that spend their time in system calls.
package yield

import (
	"runtime"
	"time"
)

// A goroutine is rescheduled after so many sleeps and so much time; the runtime's limit is 10
// ms. Values below are defined by this project.
const (
	sleeps = 16
	period = 5 * time.Millisecond
)

// Yield belongs to one goroutine. If the runtime has not scheduled a goroutine for 10 ms, it
// takes its processor (P) at each check, every 20 us, that finds it in a system call. Getting
// the P back takes several system calls and one wake-up of a thread each time.
type Yield struct {
	count int
	last  time.Time
}

// Sleep must be called before a system call that sleeps. It lets the runtime reschedule the
// goroutine when that is due. A goroutine that seldom sleeps pays nothing: it loses its P
// anyhow.
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

// procs is the least GOMAXPROCS of a program whose goroutines spend their time in system calls:
// a P for an engine, for each of its sleeping threads, and for each connection that waits.
// Defined by this project.
const procs = 8

// Spare provides idle Ps to a program on a small machine until restore is called. While a P is
// idle, a goroutine in a system call keeps its own P for 10 ms; while none is, the runtime takes
// it at its next check. After each loss the runtime checks 50 times, every 20 us, on a processor
// where a thread spins, which costs that thread a fifth of its time.
func Spare() (restore func()) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(before, procs))
	return func() { runtime.GOMAXPROCS(before) }
}
