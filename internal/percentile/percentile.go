// Package percentile defines a percentile for all commands: the smallest sample that at least
// that many percent of the samples do not exceed. It is always one of the samples, never a
// value between two.
package percentile

import (
	"cmp"
	"math"
)

// Of returns the percentile p (0 to 100) of samples in ascending order, or the zero value if
// there are none.
func Of[T cmp.Ordered](sorted []T, p float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	// Divide last: 7.0/100*100 is 7.000000000000001, which would select the eighth sample.
	i := int(math.Ceil(p*float64(len(sorted))/100)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
