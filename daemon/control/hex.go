package control

import (
	"fmt"
	"strconv"
	"strings"
)

// Hex is a 64-bit value, in JSON a string "0x…", because a JSON number holds only 53 bits.
type Hex uint64

// String returns h as in JSON.
func (h Hex) String() string { return "0x" + strconv.FormatUint(uint64(h), 16) }

// MarshalText implements encoding.TextMarshaler.
func (h Hex) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It accepts only "0x" and 1 to 16 hexadecimal
// digits.
func (h *Hex) UnmarshalText(b []byte) error {
	digits, ok := strings.CutPrefix(string(b), "0x")
	if !ok {
		return fmt.Errorf("hexadecimal value %q: give 0x and 1 to 16 digits", b)
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || strings.ContainsAny(digits, "+-_") {
		return fmt.Errorf("hexadecimal value %q: give 0x and 1 to 16 digits", b)
	}
	*h = Hex(v)
	return nil
}
