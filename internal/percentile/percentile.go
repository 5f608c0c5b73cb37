// Package percentile is what every command means by a percentile: the smallest sample that
// so many percent do not exceed, one of the samples and never a value between two.
package percentile

import (
	"cmp"
	"math"
)

// Of gives the percentile p, 0 to 100, of samples in ascending order; the zero value of none.
func Of[T cmp.Ordered](sorted []T, p float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	// Divided last: 7.0/100*100 is 7.000000000000001, thus the eighth.
	i := int(math.Ceil(p*float64(len(sorted))/100)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
