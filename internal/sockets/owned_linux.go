package sockets

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/exanet/pfd/internal/uids"
)

// Trusted reports whether the calling process trusts user uid, who serves the socket at path,
// with its memory. Trusted are root, its own user, each of named, and for the machine's own
// socket (Root) the owner of its directory. Only root can have created that directory for a
// user, as a service manager does for a pfd that is not root.
func Trusted(path string, uid uint32, named []uint32) bool {
	return trusted(path, uid, uint32(os.Geteuid()), named, owner)
}

func trusted(path string, uid, euid uint32, named []uint32, owner func(dir string) (uint32, bool)) bool {
	if uids.Trusted(uid, euid, named) {
		return true
	}
	dir := filepath.Dir(Root)
	if filepath.Dir(path) != dir {
		return false
	}
	by, ok := owner(dir)
	return ok && uids.Same(by, uid)
}

// owner returns the owner of a directory.
func owner(dir string) (uint32, bool) {
	info, err := os.Lstat(dir)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, info.IsDir()
}
