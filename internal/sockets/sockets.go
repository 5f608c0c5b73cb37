// Package sockets knows where a pfd's two sockets are (spec/api.md, Daemon). It
// is apart from package control so that processes that only attach, and package
// attach for them, need no HTTP.
package sockets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// AttachSuffix is what the attachment socket's name has behind the control
// socket's (spec/api.md).
const AttachSuffix = ".attach"

// MetricsSuffix is what the metrics socket's name has behind it (ours).
const MetricsSuffix = ".metrics"

// ErrNoDefault says that the environment gives no socket, as after su and in a container.
var ErrNoDefault = errors.New("no socket is named, and neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set: " +
	"name one with --socket PATH, or run `export XDG_RUNTIME_DIR=$(mktemp -d)` and set the same directory in each shell that uses this pfd")

// Root is where the machine's pfd, a service of root, has its control socket
// (spec/api.md, Daemon).
const Root = "/run/exanet/pfd.sock"

// Default gives the control socket that a pfd makes where nobody names one:
// $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock for root, else
// $XDG_RUNTIME_DIR/exanet/pfd.sock. Its error is ErrNoDefault.
func Default() (string, error) { return defaultOf(os.Getenv, os.Geteuid()) }

func defaultOf(getenv func(string) string, euid int) (string, error) {
	for _, dir := range runtimeDirectories(getenv) {
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

// runtimeDirectories lists the runtime directories that systemd made for this service, with
// colons between them (systemd.exec(5)).
func runtimeDirectories(getenv func(string) string) []string {
	return slices.DeleteFunc(strings.Split(getenv("RUNTIME_DIRECTORY"), ":"), func(dir string) bool { return dir == "" })
}

// Find returns the control socket that a client asks where nobody names one: the first that
// exists of those in each directory of RUNTIME_DIRECTORY, for a user who is not root in
// XDG_RUNTIME_DIR, and the machine's own. A service with a runtime directory need not be a pfd.
// Where none exists it returns the Default, and its error is ErrNoDefault.
func Find() (string, error) {
	return findOf(os.Getenv, os.Geteuid(), func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func findOf(getenv func(string) string, euid int, there func(string) bool) (string, error) {
	var candidates []string
	for _, dir := range runtimeDirectories(getenv) {
		candidates = append(candidates, filepath.Join(dir, "pfd.sock"))
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" && euid != 0 {
		candidates = append(candidates, filepath.Join(dir, "exanet", "pfd.sock"))
	}
	for _, path := range append(candidates, Root) {
		if there(path) {
			return path, nil
		}
	}
	path, err := defaultOf(getenv, euid)
	if err != nil {
		err = fmt.Errorf("no pfd is at %s; %w", Root, err)
	}
	return path, err
}
