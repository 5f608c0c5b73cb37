package control

import (
	"errors"
	"strings"
	"testing"
)

func TestDefaultSocket(t *testing.T) {
	for _, tc := range []struct {
		name string
		env  map[string]string
		euid int
		want string
	}{
		{"systemd", map[string]string{"RUNTIME_DIRECTORY": "/run/exanet"}, 0, "/run/exanet/pfd.sock"},
		{"systemd, two directories", map[string]string{"RUNTIME_DIRECTORY": "/run/a:/run/b"}, 500, "/run/a/pfd.sock"},
		{"root", map[string]string{"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/exanet/pfd.sock"},
		{"user", map[string]string{"XDG_RUNTIME_DIR": "/run/user/500"}, 500, "/run/user/500/exanet/pfd.sock"},
		{"user without a directory", nil, 500, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := defaultSocket(func(k string) string { return tc.env[k] }, tc.euid)
			if got != tc.want {
				t.Errorf("socket %q, want %q", got, tc.want)
			}
			if (err != nil) != (tc.want == "") || err != nil && !errors.Is(err, ErrSocketPath) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestCheckSocketKnowsTheLimit(t *testing.T) {
	if err := CheckSocket("/" + strings.Repeat("a", 99)); err != nil {
		t.Errorf("a path of 100 bytes: %v", err)
	}
	for name, path := range map[string]string{
		"101 bytes": "/" + strings.Repeat("a", 100), "empty": "", "zero byte": "/a\x00b",
	} {
		if err := CheckSocket(path); !errors.Is(err, ErrSocketPath) {
			t.Errorf("%s: %v, want ErrSocketPath", name, err)
		}
	}
	err := CheckSocket("/" + strings.Repeat("a", 100))
	if err == nil || !strings.Contains(err.Error(), "at most 100 bytes") {
		t.Errorf("error %v does not say what fits", err)
	}
}
