package sockets

import (
	"errors"
	"slices"
	"testing"
)

func TestDefault(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		euid int
		want string // "": ErrNoDefault
	}{
		{"service", map[string]string{"RUNTIME_DIRECTORY": "/run/x", "XDG_RUNTIME_DIR": "/u"}, 7, "/run/x/pfd.sock"},
		{"root's service", map[string]string{"RUNTIME_DIRECTORY": "/run/x"}, 0, "/run/x/pfd.sock"},
		{"service with two directories", map[string]string{"RUNTIME_DIRECTORY": "/run/x:/run/y"}, 7, "/run/x/pfd.sock"},
		{"root", map[string]string{"XDG_RUNTIME_DIR": "/u"}, 0, "/run/exanet/pfd.sock"},
		{"user", map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/run/user/7/exanet/pfd.sock"},
		{"user without a directory", nil, 7, ""},
	} {
		got, err := defaultOf(func(k string) string { return tt.env[k] }, tt.euid)
		if got != tt.want || errors.Is(err, ErrNoDefault) != (tt.want == "") {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

// A user's client finds the machine's pfd, and prefers the user's own.
func TestFind(t *testing.T) {
	user := map[string]string{"XDG_RUNTIME_DIR": "/u"}
	for _, tt := range []struct {
		name  string
		env   map[string]string
		euid  int
		there []string
		want  string // "": ErrNoDefault
	}{
		{"no pfd", user, 7, nil, "/u/exanet/pfd.sock"},
		{"the user's own", user, 7, []string{"/u/exanet/pfd.sock"}, "/u/exanet/pfd.sock"},
		{"both", user, 7, []string{"/u/exanet/pfd.sock", Root}, "/u/exanet/pfd.sock"},
		{"the machine's", user, 7, []string{Root}, Root},
		{"the machine's, without a directory", nil, 7, []string{Root}, Root},
		{"neither", nil, 7, nil, ""},
		{"root", nil, 0, nil, Root},
		{"a service", map[string]string{"RUNTIME_DIRECTORY": "/run/x"}, 7, []string{Root}, "/run/x/pfd.sock"},
	} {
		got, err := findOf(func(k string) string { return tt.env[k] }, tt.euid, func(path string) bool { return slices.Contains(tt.there, path) })
		if got != tt.want || errors.Is(err, ErrNoDefault) != (tt.want == "") {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}
