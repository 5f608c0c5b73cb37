package yield

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestSleep: a goroutine that sleeps in system calls all the time is rescheduled; one that
// seldom sleeps is not.
func TestSleep(t *testing.T) {
	scheduled := func(n int, pause time.Duration) (yields int) {
		var y Yield
		y.last = time.Now()
		for range n {
			before := y.last
			y.Sleep()
			if y.last != before {
				yields++
			}
			ts := syscall.NsecToTimespec(int64(pause))
			_ = syscall.Nanosleep(&ts, nil)
		}
		return yields
	}
	if n := scheduled(10*sleeps, period/sleeps); n == 0 {
		t.Errorf("scheduled %d times in %d sleeps, want some", n, 10*sleeps)
	}
	if n := scheduled(2*sleeps, period); n > 2 {
		t.Errorf("scheduled %d times in %d long sleeps, want 2 at most", n, 2*sleeps)
	}
}

// TestSpare: a program with one P gets more until restore; one with many keeps its number.
func TestSpare(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	restore := Spare()
	if n := runtime.GOMAXPROCS(0); n != procs {
		t.Errorf("GOMAXPROCS is %d, want %d", n, procs)
	}
	restore()
	if n := runtime.GOMAXPROCS(2 * procs); n != 1 {
		t.Errorf("GOMAXPROCS is %d after restore, want 1", n)
	}
	defer Spare()()
	if n := runtime.GOMAXPROCS(0); n != 2*procs {
		t.Errorf("GOMAXPROCS is %d, want %d as before", n, 2*procs)
	}
}
