// Package yield keeps a goroutine that lives in system calls on its processor.
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
