// Package leak is for tests: it tells whether what is done over and over leaves
// something behind in the process that does it: descriptors, goroutines, memory.
package leak

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// patience bounds the wait for what ends by itself (ours).
const patience = 10 * time.Second

// state is what a process holds.
type state struct {
	fds, goroutines int
	objects         uint64
}

func now(t testing.TB) state {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var m runtime.MemStats
	// Twice: what a pool holds goes with the second, and what a finalizer held.
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return state{len(list), runtime.NumGoroutine(), m.Mallocs - m.Frees}
}

// sets is how often rounds must leave something behind: what the runtime keeps for itself
// grows now and then, and a leak each time (ours).
const sets = 3

// Rounds does f so often, after as many times to warm up, and fails the test where
// the process then holds more than before: a descriptor, a goroutine, or on average
// an object for every other round. What still ends by itself is waited for, and the rounds
// are done anew to see whether they leave something each time.
func Rounds(t testing.TB, rounds int, f func(round int)) {
	t.Helper()
	check(t, rounds, patience, f)
}

func check(t testing.TB, rounds int, patience time.Duration, f func(round int)) {
	t.Helper()
	do := func() {
		for i := range rounds {
			f(i)
		}
	}
	do()
	var before, after state
	for range sets {
		before = now(t)
		do()
		after = now(t)
		for deadline := time.Now().Add(patience); after.more(before, rounds) && time.Now().Before(deadline); after = now(t) {
			time.Sleep(10 * time.Millisecond)
		}
		if !after.more(before, rounds) {
			return
		}
	}
	t.Errorf("%d rounds left something behind, %d times: at last %d descriptors, %d goroutines and %d objects before, %d, %d and %d after",
		rounds, sets, before.fds, before.goroutines, before.objects, after.fds, after.goroutines, after.objects)
}

func (s state) more(than state, rounds int) bool {
	return s.fds > than.fds || s.goroutines > than.goroutines || s.objects > than.objects+uint64(rounds)/2
}
