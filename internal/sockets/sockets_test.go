package sockets

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/exanet/pfd/internal/golden"
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

const rules = "../../attach/testdata/rules.txt"

func TestFind(t *testing.T) {
	golden.Rules(t, rules, "find", 5, func(w []string) string {
		env := map[string]string{"RUNTIME_DIRECTORY": w[1], "XDG_RUNTIME_DIR": w[2]}
		got, err := findOf(func(k string) string { return env[k] }, int(golden.Number(t, w[0])), func(path string) bool {
			return slices.Contains(strings.Split(w[3], ","), path)
		})
		if (err != nil) != errors.Is(err, ErrNoDefault) {
			t.Error(err)
		}
		return got
	})
}

func TestTrusted(t *testing.T) {
	golden.Rules(t, rules, "server", 6, func(w []string) string {
		owner := func(string) (uint32, bool) { return golden.Number(t, w[4]), true }
		return golden.YesNo(trusted(w[3]+AttachSuffix, golden.Number(t, w[0]), golden.Number(t, w[1]), golden.Numbers(t, w[2]), owner))
	})
}
