package trace

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Base returns CLOCK_MONOTONIC, in ns, at the moment from which now counts. It reads both
// clocks several times and uses the closest pair. The result is the kernel's own clock, as eBPF
// reads it, in any time namespace (time_namespaces(7)).
func Base(now func() int64) (int64, error) {
	const looks = 16
	var best, base int64 = -1, 0
	for range looks {
		var ts unix.Timespec
		before := now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return 0, fmt.Errorf("clock_gettime: %w", err)
		}
		after := now()
		if took := after - before; best < 0 || took < best {
			best, base = took, ts.Nano()-before-took/2
		}
	}
	// A kernel without time namespaces does not have this file.
	text, _ := os.ReadFile("/proc/self/timens_offsets")
	return base - offset(string(text)), nil
}

// offset returns how many ns a time namespace adds to CLOCK_MONOTONIC, from
// /proc/PID/timens_offsets.
func offset(text string) int64 {
	for line := range strings.Lines(text) {
		var s, ns int64
		if n, _ := fmt.Sscanf(line, "monotonic %d %d", &s, &ns); n == 2 {
			return s*int64(time.Second) + ns
		}
	}
	return 0
}
