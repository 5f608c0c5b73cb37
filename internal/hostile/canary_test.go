package hostile

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canaryEvery is how long a canary means to sleep.
const canaryEvery = time.Millisecond

// canaries tell what the machine does to everybody, beside what a table says of pfd:
// threads that sleep for a millisecond, again and again, and note by how much they
// oversleep. One on each processor has real-time priority: whatever runs gives way to
// it, and only a processor that stands still delays it. One has none: it waits for a
// processor as everybody does. Nothing is judged by them.
type canaries struct {
	quit  chan struct{}
	all   sync.WaitGroup
	first atomic.Int64 // worst of those that come first, ns
	equal atomic.Int64 // of the one that is one of many
	steal int64        // ticks, at the last account
}

// watchMachine starts canaries, which end with the test.
func watchMachine(t *testing.T) *canaries {
	c := &canaries{quit: make(chan struct{}), steal: stolen()}
	// A canary sleeps unknown to the Go scheduler, whose threads it would wait for else.
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + runtime.NumCPU() + 1)
	for cpu := range runtime.NumCPU() {
		c.all.Go(func() { c.sleep(&c.first, cpu) })
	}
	c.all.Go(func() { c.sleep(&c.equal, -1) })
	t.Cleanup(func() {
		close(c.quit)
		c.all.Wait()
		runtime.GOMAXPROCS(before)
	})
	return c
}

// sleep is one canary: on a processor that it shares with nobody while it runs, or -1.
func (c *canaries) sleep(worst *atomic.Int64, cpu int) {
	runtime.LockOSThread() // for good: a thread of another priority is nobody else's
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
		if unix.SchedSetaffinity(0, &set) != nil || unix.SchedSetAttr(0, &attr, 0) != nil {
			return // without the right the table has a 0
		}
	}
	pause := unix.NsecToTimespec(int64(canaryEvery))
	for {
		select {
		case <-c.quit:
			return
		default:
		}
		begin := time.Now()
		_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0) // a signal makes it shorter
		if late := int64(time.Since(begin) - canaryEvery); late > worst.Load() {
			worst.Store(late) // an account in between counts it twice
		}
	}
}

// account is a line about the time since the last one.
func (c *canaries) account(when string) string {
	now := stolen()
	steal := now - c.steal
	c.steal = now
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	return fmt.Sprintf("| %s | %.1f | %.1f | %d |\n", when, ms(c.first.Swap(0)), ms(c.equal.Swap(0)), steal*1000/ticks)
}

// ticks is USER_HZ, what /proc counts a second in.
const ticks = 100

// stolen is how long the host had the processors while this machine wanted them, in
// ticks, as it told the kernel (proc_stat(5)); 0 where it tells nothing.
func stolen() (n int64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var name string
	var v [8]int64 // user nice system idle iowait irq softirq steal
	line, _, _ := strings.Cut(string(b), "\n")
	if _, err := fmt.Sscan(line, &name, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]); err != nil {
		return 0
	}
	return v[7]
}
