package quota

import (
	"sync"
	"time"
)

// Limits of calls that are serialized. Values below are defined by this project.
const (
	// restShare: after a call its user pauses for restShare times the call's duration, at most
	// maxRest.
	restShare = 3
	maxRest   = 100 * time.Millisecond
	// A quick call of sleepLeast or more counts as sleeping. A user whose calls have slept for
	// maxSleep, less a hundredth of the elapsed time, sleeps too long, and counts so for
	// sleepTime.
	sleepLeast = time.Millisecond
	maxSleep   = 100 * time.Millisecond
	forgiven   = 100
	sleepTime  = 10 * time.Second
)

// Turns serializes the calls of a user that can delay all users: mmap and munmap of a user's
// file hold the lock of pfd's address space for as long as the kernel works on the file, and
// the user can prolong that. The zero value is ready. It is safe for concurrent use.
type Turns struct {
	mu    sync.Mutex
	users map[uint32]*turn
}

type turn struct {
	sync.Mutex           // held during a call
	used       int       // callers that have it or wait for it; guarded by Turns.mu
	rests      time.Time // the next call begins no earlier; guarded by the turn
	account              // guarded by Turns.mu
}

// account adds up how long a user's calls have slept.
type account struct {
	slept   time.Duration
	at      time.Time
	tooLong time.Time // TooLong reports true until then
}

// Do runs f when it is the user's turn. The user's next call then pauses for a while.
func (t *Turns) Do(uid uint32, f func()) {
	u := t.enter(uid)
	defer t.leave(u)
	u.do(f)
}

// Quick is like Do, for a call that is slow only if it sleeps. TooLong reports users whose
// calls sleep too long.
func (t *Turns) Quick(uid uint32, f func()) {
	u := t.enter(uid)
	defer t.leave(u)
	end, took := u.do(f)
	t.mu.Lock()
	defer t.mu.Unlock()
	u.took(end, took)
}

// do waits for the turn and the user's pause, runs f, and returns when f ended and how long it
// took.
func (u *turn) do(f func()) (end time.Time, took time.Duration) {
	u.Lock()
	defer u.Unlock()
	time.Sleep(time.Until(u.rests))
	began := time.Now()
	f()
	end = time.Now()
	took = end.Sub(began)
	u.rests = end.Add(min(restShare*took, maxRest))
	return end, took
}

func (t *Turns) leave(u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u.used--
}

// TooLong reports whether the user's calls have recently slept too long.
func (t *Turns) TooLong(uid uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.users[uid]
	return u != nil && time.Now().Before(u.tooLong)
}

// enter returns the user's turn. It forgets turns that were not used for long.
func (t *Turns) enter(uid uint32) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.users[uid]
	if u == nil {
		for id, old := range t.users {
			if old.used == 0 && time.Since(old.at) > sleepTime {
				delete(t.users, id)
			}
		}
		if t.users == nil {
			t.users = map[uint32]*turn{}
		}
		u = new(turn)
		t.users[uid] = u
	}
	u.used++
	return u
}

// took accounts for a call that ended now.
func (a *account) took(now time.Time, took time.Duration) {
	a.slept = max(a.slept-now.Sub(a.at)/forgiven, 0)
	a.at = now
	if took >= sleepLeast {
		a.slept += took
	}
	if a.slept >= maxSleep {
		a.slept, a.tooLong = 0, now.Add(sleepTime)
	}
}
