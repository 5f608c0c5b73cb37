package attach

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// SocketSuffix makes the attachment socket's path of the control socket's
// (spec/api.md, Daemon).
const SocketSuffix = ".attach"

// DefaultSocket gives the path of pfd's control socket when nobody names one
// (spec/api.md, Daemon): package control has the same rule for its clients, and
// this copy keeps HTTP out of the processes that only attach.
func DefaultSocket() (string, error) { return defaultSocket(os.Getenv, os.Geteuid()) }

func defaultSocket(getenv func(string) string, euid int) (string, error) {
	// systemd gives several directories with colons between (systemd.exec(5)).
	if dir, _, _ := strings.Cut(getenv("RUNTIME_DIRECTORY"), ":"); dir != "" {
		return filepath.Join(dir, "pfd.sock"), nil
	}
	if euid == 0 {
		return "/run/exanet/pfd.sock", nil
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "exanet", "pfd.sock"), nil
	}
	return "", errors.New("no socket named, and neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set: name pfd's socket")
}
