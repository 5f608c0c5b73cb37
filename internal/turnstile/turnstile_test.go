package turnstile

import (
	"testing"
	"testing/synctest"
)

// TestLockInTurn: a goroutine that releases the lock and locks it again comes after the
// waiters.
func TestLockInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		var order []int
		l.Lock()
		over := make(chan struct{})
		for i := range 3 {
			go func() {
				l.Lock()
				order = append(order, i)
				l.Unlock()
				over <- struct{}{}
			}()
			synctest.Wait()
		}
		l.Unlock()
		l.Lock()
		order = append(order, 3)
		l.Unlock()
		for range 3 {
			<-over
		}
		for i, v := range order {
			if i != v {
				t.Fatalf("order %d, want the order of arrival", order)
			}
		}
	})
}

func TestTryLock(t *testing.T) {
	l := New()
	if !l.TryLock() || l.TryLock() {
		t.Fatal("TryLock: want true, then false")
	}
	l.Unlock()
	if !l.TryLock() {
		t.Error("TryLock of an unlocked lock: false")
	}
}
