package config

import (
	"strconv"
	"testing"
)

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
		ok   bool
	}{
		{"0", 0, true}, {"1", 1, true}, {"16385", 16385, true}, {"4096B", 4096, true},
		{"4KiB", 4096, true}, {"4k", 4096, true}, {"4 KiB", 4096, true}, {"1MiB", 1 << 20, true}, {"1M", 1 << 20, true},
		{"2GiB", 2 << 30, true}, {"4kB", 4000, true}, {"1MB", 1000000, true}, {"3GB", 3e9, true},
		{"", 0, false}, {"KiB", 0, false}, {"-1", 0, false}, {"1.5KiB", 0, false}, {"4TiB", 0, false}, {"18446744073709551615KiB", 0, false},
	} {
		got, err := ParseSize(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %d, %v; want %d", c.text, got, err, c.want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"4096", "4KiB", "1 MB", "-1", "99999999999999999999", "18446744073709551615"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseSize(text)
		if plain, perr := strconv.ParseUint(text, 10, 64); perr == nil && (err != nil || n != plain) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	})
}
