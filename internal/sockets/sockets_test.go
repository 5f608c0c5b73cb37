package sockets

import (
	"errors"
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
