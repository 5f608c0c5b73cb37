//go:build !man

package main

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is the time slice that pfd and its helpers request: the minimum (sched(7), Linux 6.12).
// Their work for a transfer takes microseconds, several times in turn. A thread with a short
// slice runs before threads with longer ones when it wakes, and loses less when it yields,
// without getting more of a processor.
const slice = 100 * time.Microsecond

// shortSlices requests short slices for all threads; new threads inherit them. Older kernels
// ignore the request. If a kernel refuses it, or an administrator has chosen another policy,
// nothing changes.
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
