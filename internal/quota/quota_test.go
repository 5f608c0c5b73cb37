package quota

import "testing"

func TestQuota(t *testing.T) {
	q := New(4, 16, func(uid uint32) bool { return uid == 0 })
	fill := func(uid uint32) (n int) {
		for q.Take(uid) {
			n++
		}
		return n
	}
	// Users 1, 2 and 3 have their share, 4 half of the rest; each next one finds
	// something until there is nothing.
	for i, want := range []int{4, 4, 4, 2, 1, 1, 0} {
		if n := fill(uint32(i + 1)); n != want {
			t.Errorf("user %d has %d, want %d", i+1, n, want)
		}
	}
	if n := fill(0); n != 4 {
		t.Errorf("the reserve is %d, want 4", n)
	}
	if n := q.Total(); n != 20 {
		t.Errorf("%d are taken, want 20", n)
	}
	q.Give(1)
	if !q.Take(9) || q.Take(10) {
		t.Error("what was given back is not taken once")
	}
	q.SetPer(1)
	q.Give(0)
	if q.Take(0) {
		t.Error("more than the new share")
	}
}
