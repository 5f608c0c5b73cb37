package quota

import (
	"testing"
	"time"
)

func TestQuota(t *testing.T) {
	q := New(4, 16, func(uid uint32) bool { return uid == 0 })
	fill := func(uid uint32) (n int) {
		for q.Take(uid) {
			n++
		}
		return n
	}
	// Users 1, 2 and 3 get their share, 4 half of the rest; each further user gets something
	// until nothing is left.
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
		t.Error("one returned unit can be taken not exactly once")
	}
	q.SetPer(1)
	q.Give(0)
	if q.Take(0) {
		t.Error("more than the new share")
	}
}

func TestRate(t *testing.T) {
	r := NewRate(3, time.Millisecond)
	ms := int64(time.Millisecond)
	taken := func(uid uint32, now int64) (n int) {
		for r.Take(uid, now) {
			n++
		}
		return n
	}
	for _, c := range []struct {
		uid  uint32
		now  int64
		want int
	}{{1, 5, 3}, {1, ms, 0}, {2, ms, 3}, {1, ms + 5, 1}, {1, 100 * ms, 3}, {1, 50 * ms, 0}} {
		if n := taken(c.uid, c.now); n != c.want {
			t.Errorf("at %d user %d may %d times, want %d", c.now, c.uid, n, c.want)
		}
	}
	r.Repay(1, 2)
	r.Repay(2, 9)
	if a, b := taken(1, 100*ms), taken(2, ms); a != 2 || b != 3 {
		t.Errorf("after it was repaid they may %d and %d times, want 2 and 3", a, b)
	}
	for uid := range uint32(2 * rateUsers) {
		r.Take(uid+10, int64(uid)*100*ms)
	}
	if n := len(r.users); n > rateUsers {
		t.Errorf("%d users are remembered, want %d at most", n, rateUsers)
	}
}
