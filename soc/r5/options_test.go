package r5

import (
	"errors"
	"testing"
)

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		words string
		want  Options
		text  string
		bits  uint16
	}{
		{"", Options{}, "all", 0},
		{"all", Options{}, "all", 0},
		{"none", Options{true, true, true, true, true, true}, "none", 63},
		{"no-bypass", Options{NoBypass: true}, "no-bypass", 2},
		{"no-tickets,no-retransmission-bit", Options{NoTickets: true, NoRetransmissionBit: true}, "no-tickets,no-retransmission-bit", 20},
		{"fastpath,counters", Options{NoBypass: true, NoTickets: true, NoRetransmissionBit: true, NoWholeBlocks: true}, "no-bypass,no-tickets,no-retransmission-bit,no-whole-blocks", 54},
		{"fastpath,no-fastpath", Options{true, true, true, true, true, true}, "none", 63},
	} {
		got, err := ParseOptions(c.words)
		if err != nil || got != c.want || got.String() != c.text || got.Bits() != c.bits {
			t.Errorf("%q: %+v, %q, bits %d, %v", c.words, got, got, got.Bits(), err)
		}
		if again, err := ParseOptions(c.text); err != nil || again != c.want {
			t.Errorf("%q parses to %+v, %v", c.text, again, err)
		}
		if again, ok := OptionsOf(c.bits); !ok || again != c.want {
			t.Errorf("bits %d are %+v, %v", c.bits, again, ok)
		}
	}
	if _, ok := OptionsOf(64); ok {
		t.Error("a seventh bit has a meaning")
	}
	for _, words := range []string{"bypas", "all,bypass", "none,bypass", "bypass,", "no-", "Bypass"} {
		if _, err := ParseOptions(words); !errors.Is(err, ErrOption) {
			t.Errorf("%q: %v", words, err)
		}
	}
}

// Parsed options are formatted as words with the same meaning.
func FuzzOptions(f *testing.F) {
	for _, s := range []string{"", "all", "none", "fastpath", "no-fastpath,no-bypass", "tickets,no-counters", "no-", ",", "all,none"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOptions(s)
		if err != nil {
			if !errors.Is(err, ErrOption) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if again, err := ParseOptions(o.String()); err != nil || again != o {
			t.Errorf("%q is %+v, written as %q and read as %+v, %v", s, o, o, again, err)
		}
	})
}
