package quota

import "time"

// Rate limits how often each user may do something. It is not safe for concurrent use.
type Rate struct {
	burst int
	every int64
	users map[uint32]*bucket
}

type bucket struct {
	left int
	at   int64 // when left was computed, ns
}

// rateUsers is how many users a Rate remembers; beyond it, it forgets users with a full bucket.
// Defined by this project.
const rateUsers = 64

// NewRate returns a Rate that allows each user a burst of events, and one more per every.
func NewRate(burst int, every time.Duration) *Rate {
	return &Rate{burst: burst, every: int64(every), users: map[uint32]*bucket{}}
}

// Take reports whether the user may do it once more at the time now in ns.
func (r *Rate) Take(uid uint32, now int64) bool {
	b := r.users[uid]
	if b == nil {
		if len(r.users) >= rateUsers {
			r.forget(now)
		}
		b = &bucket{left: r.burst, at: now}
		r.users[uid] = b
	}
	r.fill(b, now)
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}

// Repay returns n of a user's events to it.
func (r *Rate) Repay(uid uint32, n int) {
	if b := r.users[uid]; b != nil {
		b.left = min(b.left+n, r.burst)
	}
}

func (r *Rate) fill(b *bucket, now int64) {
	n := max(now-b.at, 0) / r.every
	b.at += n * r.every
	b.left = int(min(int64(b.left)+n, int64(r.burst)))
}

// forget removes users with a full bucket: a new bucket would be equal.
func (r *Rate) forget(now int64) {
	for uid, b := range r.users {
		if r.fill(b, now); b.left == r.burst {
			delete(r.users, uid)
		}
	}
}
