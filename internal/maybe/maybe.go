// Package maybe provides numbers that may be unknown, such as a counter that the user may not
// read. An unknown number is NaN, so that results computed from it are unknown, too.
package maybe

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
)

// Number is a number, or unknown. Integers are exact up to 2^53.
type Number float64

// Unknown returns an unknown number.
func Unknown() Number { return Number(math.NaN()) }

// Known reports whether the number is known.
func (n Number) Known() bool { return !math.IsNaN(float64(n)) }

// Since returns how much a counter has grown since it was was. If the counter has become
// smaller it was reset, and the result is unknown.
func (n Number) Since(was Number) Number {
	if n < was {
		return Unknown()
	}
	return n - was
}

// String returns the number with all its digits, or "-".
func (n Number) String() string { return n.Text(-1) }

// Text returns the number with digits digits after the point, or "-".
func (n Number) Text(digits int) string {
	if !n.Known() {
		return "-"
	}
	return strconv.FormatFloat(float64(n), 'f', digits, 64)
}

// MarshalJSON implements json.Marshaler; null stands for an unknown number.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Known() {
		return []byte("null"), nil
	}
	return []byte(n.String()), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		*n = Unknown()
		return nil
	}
	var v float64
	err := json.Unmarshal(text, &v)
	*n = Number(v)
	return err
}
