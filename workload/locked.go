package workload

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/exanet/pfd/internal/procstatus"
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
	n, err := procstatus.Bytes(text, "VmLck", "VmPin")
	if errors.Is(err, procstatus.ErrNone) {
		err = errors.New("VmLck and VmPin are not shown: the process has ended")
	}
	if err != nil {
		return 0, fmt.Errorf("pinned memory of process %d: %w", pid, err)
	}
	return n, nil
}
