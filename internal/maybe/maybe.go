// Package maybe has numbers that may not be known, such as a counter that the user may not
// see. They are NaN then: what is computed of them is not known, either.
package maybe

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
)

// Number is a number, or not known. Whole numbers are exact up to 2^53.
type Number float64

// Unknown gives a number that is not known.
func Unknown() Number { return Number(math.NaN()) }

// Known reports whether the number is known.
func (n Number) Known() bool { return !math.IsNaN(float64(n)) }

// Since gives what a counter has grown by since it was what was says; one that has become
// less began anew, and is not known.
func (n Number) Since(was Number) Number {
	if n < was {
		return Unknown()
	}
	return n - was
}

// String gives the number with all its digits, or "-".
func (n Number) String() string { return n.Text(-1) }

// Text gives the number with so many digits behind the point, or "-".
func (n Number) Text(digits int) string {
	if !n.Known() {
		return "-"
	}
	return strconv.FormatFloat(float64(n), 'f', digits, 64)
}

// MarshalJSON implements json.Marshaler: null is a number that is not known.
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
