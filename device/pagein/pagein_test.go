package pagein

import (
	"errors"
	"strings"
	"testing"
)

// The numbers and words of docs/attach.md and spec/faultpath.md.
func TestNames(t *testing.T) {
	for s, want := range map[string]Method{"": 0, "default": 0, "gup": 1, "touch": 2, "uffd": 3, "populate": 4} {
		got, err := ParseMethod(s)
		if got != want || err != nil || s != "" && got.String() != s || !got.Known() {
			t.Errorf("ParseMethod(%q) returned %v, %v", s, got, err)
		}
	}
	for s, want := range map[string]Policy{"": 0, "default": 0, "p1": 1, "p4": 2, "pa": 3, "adaptive": 4} {
		got, err := ParsePolicy(s)
		if got != want || err != nil || s != "" && got.String() != s || !got.Known() {
			t.Errorf("ParsePolicy(%q) returned %v, %v", s, got, err)
		}
	}
	for s, want := range map[string]Policy{"P1": PIO, "PIO": PIO, "pi4": PI4, "Pia": PIA} {
		if got, err := ParsePolicy(s); got != want || err != nil {
			t.Errorf("ParsePolicy(%q) returned %v, %v", s, got, err)
		}
	}
	if got, err := ParseMethod("UFFD"); got != UFFD || err != nil {
		t.Errorf("ParseMethod(UFFD) returned %v, %v", got, err)
	}
	for _, s := range []string{"p2", "PI", "gup ", "0", "unknown(9)"} {
		if _, err := ParseMethod(s); !errors.Is(err, ErrMethod) || !strings.Contains(err.Error(), "gup, touch") {
			t.Errorf("ParseMethod(%q) returned %v", s, err)
		}
		if _, err := ParsePolicy(s); !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), "p1, p4, pa") {
			t.Errorf("ParsePolicy(%q) returned %v", s, err)
		}
	}
}

// The first numbers after the last are not a method or a policy, and print as such.
func TestUnknown(t *testing.T) {
	m, p := Method(len(methods())), Policy(len(policies()))
	if m.Known() || p.Known() || !strings.HasPrefix(m.String(), "unknown(") || !strings.HasPrefix(p.String(), "unknown(") {
		t.Errorf("%v known %v, %v known %v", m, m.Known(), p, p.Known())
	}
}

func TestChosen(t *testing.T) {
	if MethodDefault.Chosen() != GUP || PolicyDefault.Chosen() != PIO {
		t.Errorf("the defaults are %v and %v", MethodDefault.Chosen(), PolicyDefault.Chosen())
	}
	for _, m := range []Method{GUP, Touch} {
		if m.Chosen() != m {
			t.Errorf("%v becomes %v", m, m.Chosen())
		}
	}
	for _, p := range []Policy{PIO, PI4, PIA} {
		if p.Chosen() != p {
			t.Errorf("%v becomes %v", p, p.Chosen())
		}
	}
}

// A parsed word's String parses to the same method or policy.
func FuzzWords(f *testing.F) {
	for _, s := range []string{"", "default", "gup", "touch", "populate", "uffd", "p1", "p4", "pa", "GUP", "p1 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMethod(s)
		if again, _ := ParseMethod(m.String()); err == nil && (!m.Known() || again != m) || err != nil && !errors.Is(err, ErrMethod) {
			t.Errorf("method %q: %v, %v", s, m, err)
		}
		p, err := ParsePolicy(s)
		if again, _ := ParsePolicy(p.String()); err == nil && (!p.Known() || again != p) || err != nil && !errors.Is(err, ErrPolicy) {
			t.Errorf("policy %q: %v, %v", s, p, err)
		}
	})
}
