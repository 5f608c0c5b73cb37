package sockets

import (
	"os"
	"path/filepath"
	"syscall"
)

// Owned tells whether path lies beside the machine's own socket and uid owns that
// directory: only root can have made it for him, as a service manager does for a
// pfd that is not root.
func Owned(path string, uid uint32) bool {
	dir := filepath.Dir(Root)
	if filepath.Dir(path) != dir {
		return false
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && st.Uid == uid
}
