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

// MetricsSuffix is what the metrics socket's name has behind it (ours).
const MetricsSuffix = ".metrics"

// ErrNoDefault says that the environment gives no socket.
var ErrNoDefault = errors.New("neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set")

// Root is where the machine's pfd, a service of root, has its control socket
// (spec/api.md, Daemon).
const Root = "/run/exanet/pfd.sock"

// Default gives the control socket that a pfd makes where nobody names one:
// $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock for root, else
// $XDG_RUNTIME_DIR/exanet/pfd.sock. Its error is ErrNoDefault.
func Default() (string, error) { return defaultOf(os.Getenv, os.Geteuid()) }

func defaultOf(getenv func(string) string, euid int) (string, error) {
	// systemd gives several directories with colons between (systemd.exec(5)).
	if dir, _, _ := strings.Cut(getenv("RUNTIME_DIRECTORY"), ":"); dir != "" {
		return filepath.Join(dir, "pfd.sock"), nil
	}
	if euid == 0 {
		return Root, nil
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "exanet", "pfd.sock"), nil
	}
	return "", ErrNoDefault
}

// Find gives the control socket that a client asks where nobody names one: the
// Default, and where a user has none or nothing stands there, the machine's own.
// Its error is ErrNoDefault.
func Find() (string, error) {
	return findOf(os.Getenv, os.Geteuid(), func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func findOf(getenv func(string) string, euid int, there func(string) bool) (string, error) {
	path, err := defaultOf(getenv, euid)
	if getenv("RUNTIME_DIRECTORY") == "" && (err != nil || !there(path)) && there(Root) {
		return Root, nil
	}
	return path, err
}
