package percentile

import "testing"

func TestOf(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, tt := range []struct {
		sorted []int
		p      float64
		want   int
	}{
		{nil, 50, 0},
		{[]int{7}, 0, 7}, {[]int{7}, 50, 7}, {[]int{7}, 100, 7},
		{[]int{1, 9}, 50, 1}, {[]int{1, 9}, 51, 9},
		{[]int{1, 2, 9}, 50, 2},
		{hundred, 0, 1}, {hundred, 1, 1}, {hundred, 29, 29}, {hundred, 50, 50}, {hundred, 99, 99}, {hundred, 99.1, 100}, {hundred, 100, 100},
	} {
		if got := Of(tt.sorted, tt.p); got != tt.want {
			t.Errorf("percentile %v of %d samples: %d, want %d", tt.p, len(tt.sorted), got, tt.want)
		}
	}
	for p := range hundred {
		if got := Of(hundred, float64(p+1)); got != p+1 {
			t.Errorf("percentile %d of 1 to 100: %d", p+1, got)
		}
	}
}
