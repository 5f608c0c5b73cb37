// Package sockets has the paths of pfd's sockets (spec/api.md, Daemon). It is separate from
// package control so that processes that only attach, and package attach for them, do not link
// HTTP.
package sockets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// AttachSuffix is appended to the name of the control socket for the attachment socket
// (spec/api.md).
const AttachSuffix = ".attach"

// MetricsSuffix is appended for the metrics socket; defined by this project.
const MetricsSuffix = ".metrics"

// HostsSuffix is appended for the socket of exanet-hostd; defined by this project.
const HostsSuffix = ".hosts"

// ErrNoDefault reports that the environment names no socket, as after su and in a container.
var ErrNoDefault = errors.New("no socket is named, and neither RUNTIME_DIRECTORY nor XDG_RUNTIME_DIR is set: " +
	"name one with --socket PATH, or run `export XDG_RUNTIME_DIR=$(mktemp -d)` and set the same directory in each shell that uses this pfd")

// Root is where the machine's pfd, a service of root, has its control socket
// (spec/api.md, Daemon).
const Root = "/run/exanet/pfd.sock"

// Default returns the path of the control socket that a pfd creates if none is named:
// $RUNTIME_DIRECTORY/pfd.sock, else /run/exanet/pfd.sock for root, else
// $XDG_RUNTIME_DIR/exanet/pfd.sock. The error is ErrNoDefault.
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

// runtimeDirectories returns the runtime directories that systemd created for this service
// (systemd.exec(5): separated by colons).
func runtimeDirectories(getenv func(string) string) []string {
	return slices.DeleteFunc(strings.Split(getenv("RUNTIME_DIRECTORY"), ":"), func(dir string) bool { return dir == "" })
}

// Find returns the control socket that a client uses if none is named. It is the first that
// exists: in a directory of RUNTIME_DIRECTORY, in XDG_RUNTIME_DIR for a user who is not root,
// and the machine's own. (A service with a runtime directory need not be a pfd.) If none
// exists, Find returns the Default, with ErrNoDefault if there is none.
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
