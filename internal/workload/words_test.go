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
