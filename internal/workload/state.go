package workload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// State is the state of a buffer before a transfer.
type State string

// The states of a buffer.
const (
	Absent    State = "absent"    // anonymous memory that was never touched: no page is resident
	Present   State = "present"   // anonymous memory, every page written
	COW       State = "cow"       // present, and shared with a forked child that keeps its own copy
	ReadOnly  State = "readonly"  // present, then made read-only
	Unmapped  State = "unmapped"  // addresses at which nothing is mapped
	Alternate State = "alternate" // every second page written, the others never touched
	Pinned    State = "pinned"    // present and locked (mlock(2)): pages cannot be evicted
	Swapped   State = "swapped"   // written, then paged out to swap
)

var states = []State{Absent, Present, COW, ReadOnly, Unmapped, Alternate, Pinned, Swapped}

// States returns the names that ParseState accepts.
func States() (names []string) {
	for _, s := range states {
		names = append(names, string(s))
	}
	return names
}

// ErrRequest means that a request cannot be carried out.
var ErrRequest = errors.New("wrong request")

// refusal is a condition under which a request is refused.
type refusal struct {
	bad  bool
	text string
}

// refuse returns an error for the first bad one of list, which matches ErrRequest.
func refuse(list ...refusal) error {
	for _, r := range list {
		if r.bad {
			return fmt.Errorf("%w: %s", ErrRequest, r.text)
		}
	}
	return nil
}

// ErrSkipped means that this machine does not support the request.
var ErrSkipped = errors.New("not possible on this machine")

// ParseState returns the state with a name.
func ParseState(s string) (State, error) {
	if !slices.Contains(states, State(s)) {
		return "", fmt.Errorf("%w: buffer state %q: want one of %s", ErrRequest, s, strings.Join(States(), ", "))
	}
	return State(s), nil
}

// written reports whether a page of a buffer in this state is written when the
// buffer is made. The others are absent.
func (s State) written(page int) bool {
	switch s {
	case Absent:
		return false
	case Alternate:
		return page%2 == 1
	}
	return true
}

// whole reports whether all pages of a buffer in this state are alike.
func (s State) whole() bool { return s == Absent || s == Present }

// Waiting is the way in which the initiator waits for the end of a transfer.
type Waiting string

// The ways to wait.
const (
	Poll Waiting = "poll" // poll the descriptor
	Wait Waiting = "wait" // poll for a while, then sleep in the kernel
	Auto Waiting = "auto" // Poll up to PollLimit, Wait above
)

// PollLimit is the size of the largest transfer for which Auto polls, in bytes.
const PollLimit = 16 << 10

// ParseWaiting returns the way to wait with a name.
func ParseWaiting(s string) (Waiting, error) {
	switch w := Waiting(s); w {
	case Poll, Wait, Auto:
		return w, nil
	}
	return "", fmt.Errorf("%w: waiting %q: want auto, poll or wait", ErrRequest, s)
}

// resolve returns the way to wait that Auto means for a size, otherwise w.
func (w Waiting) resolve(size uint64) Waiting {
	switch {
	case w == Poll, w == Wait:
		return w
	case size <= PollLimit:
		return Poll
	}
	return Wait
}
