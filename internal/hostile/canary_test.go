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

// canaryEvery is how long a canary intends to sleep.
const canaryEvery = time.Millisecond

// canaries measure how the machine delays all threads, beside a table about pfd: threads that
// sleep for a millisecond repeatedly and record by how much they oversleep. One canary on each
// processor has real-time priority: only a processor that stands still delays it. One canary
// has none and waits for a processor like any thread. No test asserts their results.
type canaries struct {
	quit  chan struct{}
	all   sync.WaitGroup
	first atomic.Int64 // worst delay of the real-time canaries, ns
	equal atomic.Int64 // worst delay of the ordinary canary
	steal int64        // ticks, at the last account
}

// watchMachine starts canaries, which end with the test.
func watchMachine(t *testing.T) *canaries {
	c := &canaries{quit: make(chan struct{}), steal: stolen()}
	// A canary sleeps without the Go scheduler's knowledge, and would otherwise delay its
	// threads.
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

// sleep runs one canary on a processor; -1 means any.
func (c *canaries) sleep(worst *atomic.Int64, cpu int) {
	runtime.LockOSThread() // never unlocked: no other goroutine may use a thread of this priority
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
		if unix.SchedSetaffinity(0, &set) != nil || unix.SchedSetAttr(0, &attr, 0) != nil {
			return // without the right to do so the table has a 0
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
		_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0) // a signal may cut it short
		if late := int64(time.Since(begin) - canaryEvery); late > worst.Load() {
			worst.Store(late) // a concurrent account may count it twice
		}
	}
}

// account returns a line about the time since the last account.
func (c *canaries) account(when string) string {
	now := stolen()
	steal := now - c.steal
	c.steal = now
	ms := func(ns int64) float64 { return float64(ns) / 1e6 }
	return fmt.Sprintf("| %s | %.1f | %.1f | %d |\n", when, ms(c.first.Swap(0)), ms(c.equal.Swap(0)), steal*1000/ticks)
}

// ticks is USER_HZ, the unit of times in /proc.
const ticks = 100

// stolen returns how long, in ticks, the host ran others while this machine wanted its
// processors (proc_stat(5)); 0 if the host does not report it.
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
