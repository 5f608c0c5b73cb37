package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/internal/procstatus"
)

// PeerKilled reports whether the peer has been killed although the connection is open: see Killed.
func (c *Conn) PeerKilled() bool { return Killed(c.peer.PID) }

// Killed reports whether a process has been killed but still exists: a thread of it sleeps in the
// kernel, for a file system that does not answer, and keeps its descriptors open. Each thread has
// ended or has SIGKILL pending.
func Killed(pid int) bool {
	// All threads receive SIGKILL: while the first one lives, the others need not be checked.
	first, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil && !threadEnding(first) {
		return false
	}
	list, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, path := range list {
		b, rerr := os.ReadFile(path)
		if errors.Is(rerr, fs.ErrNotExist) || errors.Is(rerr, unix.ESRCH) {
			continue // it has ended meanwhile
		}
		if rerr != nil || !threadEnding(b) {
			return false
		}
	}
	return err == nil && len(list) > 0 // an empty list: it has ended, or is in another pid namespace
}

// threadEnding reports whether a thread will not run again, by its status (proc(5)).
func threadEnding(status []byte) bool {
	if v, _ := procstatus.Field(status, "State"); v != "" && (v[0] == 'Z' || v[0] == 'X') {
		return true
	}
	pending, err := procstatus.Mask(status, "SigPnd")
	return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
}
