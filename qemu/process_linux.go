package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrEnded reports that a process that guests need has ended.
var ErrEnded = errors.New("has ended")

// process is a process that this program, or another exanetctl, has started.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the machine's start: pids are reused
	Log   string `json:"log"`
}

// startTime returns the start time of a process in ticks: field 22 of /proc/PID/stat (proc(5)).
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	text := string(b)
	// The second field, the name in parentheses, may contain any character.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || strings.Contains("ZX", fields[0]) { // a zombie, or dead
		return 0, fmt.Errorf("process %d: %w", pid, ErrEnded)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// alive returns nil while the process runs. Otherwise it returns an error with the last of the
// process's output.
func (p process) alive() error {
	if t, err := startTime(p.PID); err == nil && t == p.Start {
		return nil
	}
	return fmt.Errorf("%s (process %d) %w: %s", filepath.Base(p.Log), p.PID, ErrEnded, lastOf(p.Log))
}

// lastOf returns the end of a log file.
func lastOf(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 800
	text := strings.TrimSpace(string(b))
	if len(text) > most {
		text = "..." + text[len(text)-most:]
	}
	return text
}

// grace is how long a process may take to end after SIGTERM; defined by this project.
const grace = 5 * time.Second

// end ends the process by SIGTERM, and by SIGKILL if it is still running after grace. If it
// returns nil the process has ended.
func (p process) end(ctx context.Context) error {
	if p.PID == 0 {
		return nil // never started
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.PID, os.NewSyscallError("pidfd_open", err))
	}
	defer unix.Close(fd)
	if p.alive() != nil { // checked after opening: the pid is reused or free
		return nil
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ending process %d: %w", p.PID, os.NewSyscallError("pidfd_send_signal", err))
		}
		for deadline := time.Now().Add(grace); time.Now().Before(deadline) && ctx.Err() == nil; {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(poll, int(grace/time.Millisecond)); n > 0 && err == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d does not end after SIGKILL", p.PID)
}
