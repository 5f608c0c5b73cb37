// Package quota counts what each user has of what pfd has little of.
package quota

import (
	"sync"

	"github.com/exanet/pfd/internal/uids"
)

// Quota counts what users have. It may be used by any goroutine.
type Quota struct {
	mu       sync.Mutex
	per, all int
	reserved func(uid uint32) bool
	n        map[uint32]int
	sum      int
}

// New gives a Quota of which each user has at most per, and all users together
// all. A user has no more than half of what the others leave either, and one at
// least: users are cheap to who has subordinate ids (subuid(5)), and some remain
// for the next. Each user of whom reserved is true has per besides; it may be nil.
func New(per, all int, reserved func(uid uint32) bool) *Quota {
	return &Quota{per: per, all: all, reserved: reserved, n: map[uint32]int{}}
}

// Take tells whether a user may have one more; then Give must follow.
func (q *Quota) Take(uid uint32) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	own := q.n[uid]
	if own >= q.per {
		return false
	}
	if q.reserved == nil || !q.reserved(uid) {
		if q.sum >= q.all || own > 0 && own >= (q.all-q.sum+own)/2 {
			return false
		}
		q.sum++
	}
	q.n[uid]++
	return true
}

// Give takes one back.
func (q *Quota) Give(uid uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reserved == nil || !q.reserved(uid) {
		q.sum--
	}
	if q.n[uid]--; q.n[uid] <= 0 {
		delete(q.n, uid)
	}
}

// Per gives how many each user may have.
func (q *Quota) Per() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.per
}

// SetPer changes how many each user may have; those that it has stay.
func (q *Quota) SetPer(per int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.per = per
}

// Total gives how many are taken.
func (q *Quota) Total() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.n {
		n += k
	}
	return n
}

// Privileged tells whether a user is root, or the one that this process runs as.
func Privileged(uid uint32) bool { return uid == 0 || uids.Own(uid) }
