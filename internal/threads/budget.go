// Package threads keeps a process within its limits of threads. The Go runtime creates a thread
// whenever all others are in system calls, and ends the process if the kernel refuses. So a
// call that may hang is made only if a Budget has a thread for it.
package threads

import (
	"errors"
	"sync"
	"time"
)

// ErrNone reports that a Budget has no thread for a call. It is temporary: calls that end
// release threads.
var ErrNone = errors.New("no thread is left for a call that may hang (pids.max, ulimit -u, or the user's share): end the user's hanging calls, or raise the limit")

// Sizes of a budget. Values below are defined by this project.
const (
	// most is how many calls of all users may be in flight. With pfd's other threads they fit
	// into the unit's 512 tasks, and stay far below the Go runtime's own limit of 10,000.
	most = 448
	// mostOfUser is how many calls of one user may be in flight.
	mostOfUser = 256
	// prepared is how many threads Prepare creates. Of these, spare stay for calls that need no
	// Budget because they are short or few.
	prepared = 32
	spare    = 16
	// reserve is how many tasks are left to other processes of a cgroup.
	reserve = 8
	// fresh is how long a reading of the limits stays valid.
	fresh = 10 * time.Millisecond
)

// Budget counts the calls in flight that may hang, by user. Later calls reuse the threads of
// earlier ones, so only a new maximum of calls needs more threads. It is safe for concurrent
// use.
type Budget struct {
	room func() int // returns how many tasks the limits leave; not called concurrently

	mu     sync.Mutex
	users  map[uint32]int
	sum    int
	made   int // threads that exist for calls
	looked time.Time
	limit  int // maximum of sum, as of looked
}

// New returns the budget of this process. It reads the limits when more threads are needed, so
// they may change.
func New() *Budget { return newBudget(new(limits).room) }

func newBudget(room func() int) *Budget {
	return &Budget{room: room, users: map[uint32]int{}}
}

// Prepare creates threads, which the runtime keeps, and returns how many of wanted it could
// create. With them pfd works on when other processes use up the limits.
func (b *Budget) Prepare() (made, wanted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	made = keep(prepared, func() bool { return b.room() > reserve })
	b.made = max(b.made, made-spare)
	return made, prepared
}

// Take reports whether a user may have one more call in flight. If so, the caller must call
// Give later. A user may have at most half of what others leave. A caller without a call in
// flight (first) may use all of the limit and the share, other callers half, so that callers
// with hanging calls leave room for callers without.
func (b *Budget) Take(uid uint32, first bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sum >= b.made/4 && time.Since(b.looked) > fresh {
		b.limit = b.look()
		b.looked = time.Now()
	}
	limit, own := max(b.limit, b.made), b.users[uid]
	share := min(mostOfUser, max((limit-b.sum+own)/2, 1))
	if !first {
		limit, share = limit/2, share/2
	}
	if b.sum >= limit || own >= share {
		return false
	}
	b.add(uid)
	return true
}

// Charge counts a call that was made without Take and that hangs. The caller must call Give
// later.
func (b *Budget) Charge(uid uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(uid)
}

func (b *Budget) add(uid uint32) {
	b.users[uid]++
	b.sum++
	b.made = max(b.made, b.sum)
}

// Give ends a counted call.
func (b *Budget) Give(uid uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sum--
	if b.users[uid]--; b.users[uid] <= 0 {
		delete(b.users, uid)
	}
}

// look returns how many calls the limits allow.
func (b *Budget) look() int {
	return min(b.made+max(b.room()-reserve, 0), most)
}
