package workload

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/exanet/pfd/internal/procstatus"
)

// pinned returns the sum of VmLck (locked memory) and VmPin (pinned pages) of processes, in
// bytes, from /proc/PID/status (proc_pid_status(5)).
func pinned(pids ...int) (sum int64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("/proc shows no process %d: it has ended, or this program is in another PID namespace than pfd: run it in the same (nsenter --pid)", pid)
		}
		var n int64
		if err == nil {
			n, err = procstatus.Bytes(text, "VmLck", "VmPin")
		}
		if errors.Is(err, procstatus.ErrNone) {
			err = errors.New("VmLck and VmPin are not shown: the process has ended")
		}
		if err != nil {
			return 0, fmt.Errorf("pinned memory of process %d: %w", pid, err)
		}
		sum += n
	}
	return sum, nil
}
