package quota

import (
	"sync"
	"time"
)

// Bounds of calls that are made in turns (ours).
const (
	// restShare: after a call its user rests for so many times what it took, maxRest at most.
	restShare = 3
	maxRest   = 100 * time.Millisecond
	// Quick calls that take sleepLeast and more count as sleeping. A user whose calls have slept for maxSleep,
	// of which a hundredth of the time is forgiven, sleeps too long, and does so for sleepTime.
	sleepLeast = time.Millisecond
	maxSleep   = 100 * time.Millisecond
	forgiven   = 100
	sleepTime  = 10 * time.Second
)

// Turns has those calls of a user made one at a time that all users may wait for: mmap and
// munmap of a user's file hold the lock of pfd's address space for as long as that user has
// the kernel work on the file. The zero value is ready. It may be used by any goroutine.
type Turns struct {
	mu    sync.Mutex
	users map[uint32]*turn
}

type turn struct {
	sync.Mutex           // held during a call
	used       int       // who has it, or waits for it; guarded by Turns.mu
	rests      time.Time // the next call begins no sooner; guarded by the turn
	account              // guarded by Turns.mu
}

// account is what a user's calls have slept.
type account struct {
	slept   time.Duration
	at      time.Time
	tooLong time.Time // until then
}

// Do runs f when the user's turn has come. The user's next call rests for a while.
func (t *Turns) Do(uid uint32, f func()) {
	u := t.enter(uid)
	defer t.leave(u)
	u.do(f)
}

// Quick is Do for a call that takes long only where it sleeps: a user whose calls sleep too long
// is found by TooLong.
func (t *Turns) Quick(uid uint32, f func()) {
	u := t.enter(uid)
	defer t.leave(u)
	end, took := u.do(f)
	t.mu.Lock()
	defer t.mu.Unlock()
	u.took(end, took)
}

// do runs f when the turn has come and its user has rested, and returns when that ended and how
// long it took.
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

// TooLong reports whether the user's calls have slept too long of late.
func (t *Turns) TooLong(uid uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.users[uid]
	return u != nil && time.Now().Before(u.tooLong)
}

// enter gives the user's turn. Those that nobody has used for long are forgotten.
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

// took takes that a call ended now.
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
