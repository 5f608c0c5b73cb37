// Package turnstile is a lock that goes to who has waited longest. A sync.Mutex may
// be taken again and again by who has just released it, for a millisecond each time:
// one that asks without end would delay each request of another by that.
package turnstile

// Lock is such a lock; New makes one.
type Lock chan struct{}

// New gives a lock that nobody has.
func New() Lock { return make(Lock, 1) }

// Lock and Unlock implement sync.Locker. A channel's senders go on in order, and who
// receives passes the place on to the first of them.
func (l Lock) Lock()   { l <- struct{}{} }
func (l Lock) Unlock() { <-l }
