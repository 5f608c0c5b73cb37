package control

import (
	"encoding/json"
	"testing"
)

func TestHexIsAStringInJSON(t *testing.T) {
	for _, tc := range []struct {
		value Hex
		text  string
	}{
		{0, `"0x0"`},
		{0x1000, `"0x1000"`},
		{0xdeadbeefdeadbeef, `"0xdeadbeefdeadbeef"`},
	} {
		b, err := json.Marshal(tc.value)
		if err != nil || string(b) != tc.text {
			t.Errorf("Marshal(%#x) = %s, %v; want %s", uint64(tc.value), b, err, tc.text)
		}
		var got Hex
		if err := json.Unmarshal([]byte(tc.text), &got); err != nil || got != tc.value {
			t.Errorf("Unmarshal(%s) = %v, %v; want %v", tc.text, got, err, tc.value)
		}
	}
}

func TestHexRefusesOtherText(t *testing.T) {
	for _, text := range []string{`""`, `"0x"`, `"12"`, `"0x+1"`, `"0x-1"`, `"0x1_0"`, `"0x10000000000000000"`, `"0xg"`, `12`} {
		var h Hex
		if err := json.Unmarshal([]byte(text), &h); err == nil {
			t.Errorf("Unmarshal(%s) = %v, want an error", text, h)
		}
	}
}

func FuzzHex(f *testing.F) {
	for _, s := range []string{"0x0", "0xffffffffffffffff", "0x", "1", "0X1", "0x00000000000000001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var h, again Hex
		if h.UnmarshalText([]byte(s)) != nil {
			return
		}
		text, err := h.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if err := again.UnmarshalText(text); err != nil || again != h {
			t.Errorf("%q decodes to %v, and its text %q to %v, %v", s, h, text, again, err)
		}
	})
}
