package workload

import (
	"errors"
	"testing"
)

func FuzzWords(f *testing.F) {
	for _, s := range []string{"", "absent", "cow", "auto", "poll", "wait", "Present"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseState(s); err == nil && string(v) != s || err != nil && !errors.Is(err, ErrRequest) {
			t.Errorf("state %q: %q, %v", s, v, err)
		}
		if v, err := ParseWaiting(s); err == nil && string(v) != s || err != nil && !errors.Is(err, ErrRequest) {
			t.Errorf("waiting %q: %q, %v", s, v, err)
		}
	})
}

func FuzzPinned(f *testing.F) {
	f.Add("Name:\tx\nVmLck:\t       4 kB\nVmPin:\t       0 kB\n")
	f.Add("VmLck:\t9223372036854775807 kB\nVmPin:\t-1 kB\n")
	f.Add("VmLck: kB\nVmPin:")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parsePinned(s); err == nil && n < 0 {
			t.Errorf("%d bytes from %q", n, s)
		}
	})
}
