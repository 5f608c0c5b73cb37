// Package quota limits how much of pfd's scarce resources each user may have.
package quota

import (
	"sync"

	"github.com/exanet/pfd/internal/uids"
)

// Quota counts a resource by user. It is safe for concurrent use.
type Quota struct {
	mu       sync.Mutex
	per, all int
	reserved func(uid uint32) bool
	n        map[uint32]int
	sum      int
}

// New returns a Quota of which each user has at most per, and all users together at most all. A
// user also gets at most half of what the others leave, but at least one: a user with
// subordinate ids (subuid(5)) can act as many users, and some must remain for the next. Users
// for whom reserved is true are limited by per alone and not counted in all; reserved may be
// nil.
func New(per, all int, reserved func(uid uint32) bool) *Quota {
	return &Quota{per: per, all: all, reserved: reserved, n: map[uint32]int{}}
}

// Take reports whether a user may have one more. If so, the caller must call Give later.
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

// Give returns one.
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

// Per returns how many each user may have.
func (q *Quota) Per() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.per
}

// SetPer changes how many each user may have. Users keep those that they have.
func (q *Quota) SetPer(per int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.per = per
}

// Total returns how many are taken.
func (q *Quota) Total() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range q.n {
		n += k
	}
	return n
}

// Privileged reports whether a user is root or the effective user of this process.
func Privileged(uid uint32) bool { return uid == 0 || uids.Own(uid) }
