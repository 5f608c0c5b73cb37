// Package turnstile provides a fair lock: the longest waiter gets it next. The goroutine that
// releases a sync.Mutex may take it again and again, for up to a millisecond each time. One
// goroutine that calls without end would delay every call of another by that.
package turnstile

// Lock is a fair lock; New returns one.
type Lock chan struct{}

// New returns an unlocked Lock.
func New() Lock { return make(Lock, 1) }

// Lock and Unlock implement sync.Locker. A channel's blocked senders proceed in order, and each
// receive hands the free place to the first of them.
func (l Lock) Lock()   { l <- struct{}{} }
func (l Lock) Unlock() { <-l }

// TryLock locks l if nobody holds it, and reports whether it did.
func (l Lock) TryLock() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}
