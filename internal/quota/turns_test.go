package quota

import (
	"sync"
	"testing"
	"time"
)

// TestTurns: the calls of one user are serialized, those of other users are not.
func TestTurns(t *testing.T) {
	var turns Turns
	var all sync.WaitGroup
	within := make(chan struct{})
	inside := 0 // of user 1; the race detector checks the accesses
	for range 4 {
		all.Go(func() {
			turns.Do(1, func() {
				inside++
				<-within
				inside--
			})
		})
	}
	for range 4 { // a call of user 1 is inside now, or will be; another user does not wait for it
		turns.Do(2, func() {})
		within <- struct{}{}
	}
	all.Wait()
	if inside != 0 {
		t.Errorf("%d are inside", inside)
	}
	if turns.TooLong(3) {
		t.Error("a user without a call has slept too long")
	}
	for _, call := range []struct {
		name string
		do   func(uint32, func())
	}{{"Do", turns.Do}, {"Quick", turns.Quick}} {
		var ended time.Time
		call.do(4, func() {
			time.Sleep(time.Millisecond)
			ended = time.Now()
		})
		if u := turns.users[4]; u.rests.Sub(ended) < restShare*time.Millisecond {
			t.Errorf("the call after %s may begin %v after it, want %v at least", call.name, u.rests.Sub(ended), restShare*time.Millisecond)
		}
	}
}

// TestAccount: a user whose calls sleep for more than a hundredth of the time, and for 100 ms
// in all, sleeps too long for ten seconds; short calls do not count.
func TestAccount(t *testing.T) {
	for _, tt := range []struct {
		name        string
		every, took time.Duration
		after       int // the number of calls after which it is too long; 0: never
	}{
		{"one long call", time.Second, 300 * time.Millisecond, 1},
		{"many of 20 ms", 20 * time.Millisecond, 20 * time.Millisecond, 6},
		{"seldom", 2 * time.Second, 20 * time.Millisecond, 0},
		{"short ones", time.Millisecond, 900 * time.Microsecond, 0},
	} {
		var a account
		now, got := time.Now(), 0
		for i := range 1000 {
			now = now.Add(tt.every)
			if a.took(now, tt.took); now.Before(a.tooLong) {
				got = i + 1
				break
			}
		}
		if got != tt.after {
			t.Errorf("%s: too long after %d calls, want %d", tt.name, got, tt.after)
		}
		if got > 0 && (!now.Add(sleepTime-1).Before(a.tooLong) || now.Add(sleepTime).Before(a.tooLong)) {
			t.Errorf("%s: too long until %v after it", tt.name, a.tooLong.Sub(now))
		}
	}
}
