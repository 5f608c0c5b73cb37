package workload

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// pinned gives VmLck + VmPin of a process, bytes, as /proc/PID/status has them
// (proc_pid_status(5)): memory that is locked, and pages that are pinned.
func pinned(pid int) (int64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("/proc shows no process %d: it has ended, or this program is in another PID namespace than pfd: run it in the same (nsenter --pid)", pid)
	}
	if err != nil {
		return 0, fmt.Errorf("pinned memory of process %d: %w", pid, err)
	}
	n, err := parsePinned(string(text))
	if err != nil {
		return 0, fmt.Errorf("pinned memory of process %d: %w", pid, err)
	}
	return n, nil
}

func parsePinned(status string) (int64, error) {
	var sum int64
	found := 0
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if name != "VmLck" && name != "VmPin" {
			continue
		}
		kilobytes, ok := strings.CutSuffix(strings.TrimSpace(value), " kB")
		n, err := strconv.ParseUint(strings.TrimSpace(kilobytes), 10, 52) // both together fit in bytes
		if !ok || err != nil {
			return 0, fmt.Errorf("%s reads %q", name, strings.TrimSpace(value))
		}
		sum += int64(n) << 10
		found++
	}
	if found != 2 {
		// A process that is ending has no memory, and no such lines.
		return 0, fmt.Errorf("VmLck and VmPin are not shown: the process has ended")
	}
	return sum, nil
}
