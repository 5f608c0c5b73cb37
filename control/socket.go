package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// AttachSuffix is what the attachment socket's name has behind the control
// socket's (spec/api.md).
const AttachSuffix = ".attach"

// maxSocketPath is the longest name a unix socket can have: sun_path has 108
// bytes, the last for the zero (unix(7)).
const maxSocketPath = 107

// ErrSocketPath says that a socket's path cannot be used.
var ErrSocketPath = errors.New("socket path not usable")

// AttachSocket gives the name of the attachment socket beside a control socket.
func AttachSocket(socket string) string { return socket + AttachSuffix }

// CheckSocket tells whether a control socket of that name, and the attachment
// socket beside it, fit into a socket address. Its error matches ErrSocketPath.
func CheckSocket(socket string) error {
	if socket == "" {
		return fmt.Errorf("%w: the name is empty: give --socket PATH", ErrSocketPath)
	}
	if n := len(AttachSocket(socket)); n > maxSocketPath {
		return fmt.Errorf("%w: %s%s has %d bytes, a unix socket's name at most %d: choose a --socket PATH of at most %d bytes",
			ErrSocketPath, socket, AttachSuffix, n, maxSocketPath, maxSocketPath-len(AttachSuffix))
	}
	if strings.IndexByte(socket, 0) >= 0 {
		return fmt.Errorf("%w: %q holds a zero byte", ErrSocketPath, socket)
	}
	return nil
}

// DefaultSocket gives the control socket where --socket does not name one:
// $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock for root, else
// $XDG_RUNTIME_DIR/exanet/pfd.sock. Its error matches ErrSocketPath.
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
	return "", fmt.Errorf("%w: neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set: give --socket PATH", ErrSocketPath)
}
