// Package threads keeps a process within its limits of threads. The Go runtime makes a
// thread whenever all others are in system calls, and ends the process where the kernel
// makes none. So a call that may sleep for ever is made only where a Budget has a thread
// left for it.
package threads

import (
	"errors"
	"sync"
	"time"
)

// ErrNone says that a Budget has no thread for a call. It passes when calls end.
var ErrNone = errors.New("no thread is left for a call that may hang (pids.max, ulimit -u, or the user's share): other calls of the user hang, or the limit is too low")

// Sizes of a budget. Values below are defined by this project.
const (
	// most is how many calls all users may have under way: with what else pfd needs they
	// fit into the unit's 512 tasks, and far below the Go runtime's own limit of 10,000.
	most = 448
	// mostOfUser is how many of them a user may have.
	mostOfUser = 256
	// prepared is how many threads Prepare makes: spare of them stay for calls that ask
	// nobody, which are short or few.
	prepared = 32
	spare    = 16
	// reserve is how many tasks are left to others in a cgroup.
	reserve = 8
	// fresh is for how long a look at the limits holds.
	fresh = 10 * time.Millisecond
)

// Budget counts the calls under way that may hang, by user. A thread that was made for
// one is used again by the next, so that only more calls than ever before need more
// threads. It is safe for concurrent use.
type Budget struct {
	room func() int // tasks that the limits leave; calls are not concurrent

	mu     sync.Mutex
	users  map[uint32]int
	sum    int
	made   int // threads that there are for calls
	looked time.Time
	limit  int // of sum, as of then
}

// New returns the budget of this process. Its limits are read when more threads are
// needed, so that they may change.
func New() *Budget { return newBudget(new(limits).room) }

func newBudget(room func() int) *Budget {
	return &Budget{room: room, users: map[uint32]int{}}
}

// Prepare makes threads, which the runtime keeps, and returns how many of wanted there
// is room for. With them a process gets along when others take all that the limits leave.
func (b *Budget) Prepare() (made, wanted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	made = keep(prepared, func() bool { return b.room() > reserve })
	b.made = max(b.made, made-spare)
	return made, prepared
}

// Take reports whether a user may have one more call under way; then Give must follow.
// A user has half of what others leave at most. What has no call under way yet, first,
// may use all of that, and others half of it: who has some that hang leaves room for
// who has none.
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

// Charge counts a call that was begun without a question, and hangs; Give must follow.
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

// Give takes a call back.
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
