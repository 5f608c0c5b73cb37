// Package leak checks in tests that a repeated operation leaves no descriptors, goroutines or
// memory behind in the process.
package leak

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// patience limits the wait for resources that are released asynchronously; defined by this
// project.
const patience = 10 * time.Second

// state counts the resources of a process.
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
	// The second run frees what pools and finalizers held.
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return state{len(list), runtime.NumGoroutine(), m.Mallocs - m.Frees}
}

// sets is how many sets of rounds must all leave something behind. The runtime's own memory
// grows now and then, a leak grows every time. Defined by this project.
const sets = 3

// Rounds warms up with rounds calls of f, calls f rounds times more, and fails the test if the
// process then holds more than before: a descriptor, a goroutine, or on average one object for
// every other round. It waits for resources that are released asynchronously, and repeats the
// rounds to see whether each set leaves something behind.
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
