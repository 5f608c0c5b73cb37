package groupname

import (
	"errors"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for _, name := range []string{"a", "default", "A.b_c-9", strings.Repeat("x", 63)} {
		if err := Check(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", 64), "a b", "a/b", "a\n", "a\x00", "\xff", "\x1b[2J", "Größe", "a:b"} {
		if err := Check(name); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
