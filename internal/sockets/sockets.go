// Package sockets knows where a pfd's two sockets are (spec/api.md, Daemon). It
// is apart from package control so that processes that only attach, and package
// attach for them, need no HTTP.
package sockets

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// AttachSuffix is what the attachment socket's name has behind the control
// socket's (spec/api.md).
const AttachSuffix = ".attach"

// ErrNoDefault says that the environment gives no socket.
var ErrNoDefault = errors.New("neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set")

// Default gives the control socket where nobody names one:
// $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock for root, else
// $XDG_RUNTIME_DIR/exanet/pfd.sock. Its error is ErrNoDefault.
func Default() (string, error) { return defaultOf(os.Getenv, os.Geteuid()) }

func defaultOf(getenv func(string) string, euid int) (string, error) {
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
	return "", ErrNoDefault
}
