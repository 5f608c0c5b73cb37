package control

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// The environment decides; if it does not, the error says what to do.
func TestDefaultSocket(t *testing.T) {
	t.Setenv("RUNTIME_DIRECTORY", "/run/a:/run/b")
	if got, err := DefaultSocket(); got != "/run/a/pfd.sock" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	t.Setenv("RUNTIME_DIRECTORY", "")
	t.Setenv("XDG_RUNTIME_DIR", "")
	got, err := DefaultSocket()
	if os.Geteuid() == 0 {
		if got != "/run/exanet/pfd.sock" || err != nil {
			t.Errorf("as root: %q, %v", got, err)
		}
		return
	}
	if !errors.Is(err, ErrSocketPath) || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCheckSocketKnowsTheLimit(t *testing.T) {
	if err := CheckSocket("/" + strings.Repeat("a", 98)); err != nil {
		t.Errorf("a path of 99 bytes: %v", err)
	}
	for name, path := range map[string]string{
		"100 bytes": "/" + strings.Repeat("a", 99), "empty": "", "zero byte": "/a\x00b",
	} {
		if err := CheckSocket(path); !errors.Is(err, ErrSocketPath) {
			t.Errorf("%s: %v, want ErrSocketPath", name, err)
		}
	}
	err := CheckSocket("/" + strings.Repeat("a", 99))
	if err == nil || !strings.Contains(err.Error(), "at most 99 bytes") {
		t.Errorf("error %v does not say what fits", err)
	}
}
