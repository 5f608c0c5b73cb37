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

// ErrEnded says that a process that guests need has ended.
var ErrEnded = errors.New("has ended")

// process is one that was started here, perhaps by another exanetctl.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks since the machine's start: a number is used again
	Log   string `json:"log"`
}

// startTime gives when a process began: field 22 of /proc/PID/stat (proc(5)), in
// ticks.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	text := string(b)
	// The second field, the name in parentheses, may have anything in it.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || strings.Contains("ZX", fields[0]) { // a zombie, or dead
		return 0, fmt.Errorf("process %d: %w", pid, ErrEnded)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// alive gives nil while the process runs; else an error with the last of what it
// said.
func (p process) alive() error {
	if t, err := startTime(p.PID); err == nil && t == p.Start {
		return nil
	}
	return fmt.Errorf("%s (process %d) %w: %s", filepath.Base(p.Log), p.PID, ErrEnded, lastOf(p.Log))
}

// lastOf gives the end of a file of messages.
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

// grace is how long a process may take to end by itself (ours).
const grace = 5 * time.Second

// end ends the process: SIGTERM, and SIGKILL where that does not help. When it
// returns nil the process is gone.
func (p process) end(ctx context.Context) error {
	if p.PID == 0 {
		return nil // it was never started
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.PID, os.NewSyscallError("pidfd_open", err))
	}
	defer unix.Close(fd)
	if p.alive() != nil { // behind the descriptor: it is another's number, or nobody's
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
	return fmt.Errorf("process %d does not end", p.PID)
}
