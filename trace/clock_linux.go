package trace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Base gives CLOCK_MONOTONIC at the moment from which now counts, ns: the difference
// of the two clocks, by the tightest of some looks.
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
	return base, nil
}
