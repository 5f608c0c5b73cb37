//go:build !man

package main

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is the time slice that pfd and its helpers ask for: the least that there is
// (sched(7), Linux 6.12). What they do for a transfer takes microseconds, several times
// in turn. A thread with a short slice comes before those with longer ones when it
// wakes, and loses less where it yields; it gets no more of a processor.
const slice = 100 * time.Microsecond

// shortSlices has all threads ask for short slices; those to come inherit it. An older
// kernel takes no notice, and one that refuses leaves everything as it is, as does an
// administrator's choice of another policy.
func shortSlices() {
	for seen := 0; ; {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil || len(tasks) == seen {
			return
		}
		seen = len(tasks)
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if attr, err := unix.SchedGetAttr(tid, 0); err == nil && attr.Policy == unix.SCHED_NORMAL {
				attr.Runtime = uint64(slice)
				_ = unix.SchedSetAttr(tid, attr, 0)
			}
		}
	}
}
