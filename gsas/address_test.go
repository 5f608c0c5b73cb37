package gsas_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/exanet/pfd/gsas"
)

func TestToken(t *testing.T) {
	want := gsas.Token{0: 0x0a, 15: 0xff}
	if got, err := gsas.ParseToken(want.String()); err != nil || got != want || want.String() != "0a"+strings.Repeat("00", 14)+"ff" {
		t.Errorf("%v, %v, %v", want, got, err)
	}
	for _, s := range []string{"", "0a", strings.Repeat("0", 31), strings.Repeat("0", 34), strings.Repeat("g", 32)} {
		if _, err := gsas.ParseToken(s); !errors.Is(err, gsas.ErrToken) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(strings.Repeat("0a", 16))
	f.Fuzz(func(t *testing.T, s string) {
		if got, err := gsas.ParseToken(s); err == nil && got.String() != strings.ToLower(s) {
			t.Errorf("%q is %v", s, got)
		}
	})
}
