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
		{"none", Options{true, true, true, true, true}, "none", 31},
		{"no-bypass", Options{NoBypass: true}, "no-bypass", 2},
		{"no-tickets,no-retransmission-bit", Options{NoTickets: true, NoRetransmissionBit: true}, "no-tickets,no-retransmission-bit", 20},
		{"fastpath,counters", Options{NoBypass: true, NoTickets: true, NoRetransmissionBit: true}, "no-bypass,no-tickets,no-retransmission-bit", 22},
		{"fastpath,no-fastpath", Options{true, true, true, true, true}, "none", 31},
	} {
		got, err := ParseOptions(c.words)
		if err != nil || got != c.want || got.String() != c.text || got.Bits() != c.bits {
			t.Errorf("%q: %+v, %q, bits %d, %v", c.words, got, got, got.Bits(), err)
		}
		if again, err := ParseOptions(c.text); err != nil || again != c.want {
			t.Errorf("%q is %+v again, %v", c.text, again, err)
		}
		if again, ok := OptionsOf(c.bits); !ok || again != c.want {
			t.Errorf("bits %d are %+v, %v", c.bits, again, ok)
		}
	}
	if _, ok := OptionsOf(32); ok {
		t.Error("a sixth bit has a meaning")
	}
	for _, words := range []string{"bypas", "all,bypass", "none,bypass", "bypass,", "no-", "Bypass"} {
		if _, err := ParseOptions(words); !errors.Is(err, ErrOption) {
			t.Errorf("%q: %v", words, err)
		}
	}
}
