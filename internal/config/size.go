package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseSize returns the number of bytes that s states, with an optional unit.
func ParseSize(s string) (uint64, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	unit := strings.TrimSpace(s[len(digits):])
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a number with an optional unit, as 4096 or 4KiB", s)
	}
	factor, ok := map[string]uint64{
		"": 1, "b": 1,
		"k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30,
		"kb": 1e3, "mb": 1e6, "gb": 1e9,
	}[strings.ToLower(unit)]
	if !ok {
		return 0, fmt.Errorf("size %q: no unit %q: want B, KiB, MiB, GiB, kB, MB or GB", s, unit)
	}
	if n > math.MaxUint64/factor {
		return 0, fmt.Errorf("size %q: too large", s)
	}
	return n * factor, nil
}

// Size is a flag whose value is a number of bytes in the form that ParseSize accepts.
type Size struct{ Bytes *uint64 }

// String returns the number of bytes.
func (s Size) String() string {
	if s.Bytes == nil {
		return "0"
	}
	return strconv.FormatUint(*s.Bytes, 10)
}

// Set implements pflag.Value.
func (s Size) Set(text string) error {
	n, err := ParseSize(text)
	if err == nil {
		*s.Bytes = n
	}
	return err
}

// Type returns the word for the value in the flag's help.
func (s Size) Type() string { return "size" }
