package workload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// State says what a buffer is made to be before a transfer.
type State string

// The states of a buffer.
const (
	Absent    State = "absent"    // anonymous memory that nobody has touched: zeros, no page there
	Present   State = "present"   // anonymous memory, every page written
	COW       State = "cow"       // present, and shared with a forked child that keeps its own copy
	ReadOnly  State = "readonly"  // present, then made read-only
	Unmapped  State = "unmapped"  // addresses at which nothing is mapped
	Alternate State = "alternate" // every second page written, the others never touched
	Pinned    State = "pinned"    // present and locked: pages cannot go (mlock(2))
	Swapped   State = "swapped"   // written, then paged out to swap
)

var states = []State{Absent, Present, COW, ReadOnly, Unmapped, Alternate, Pinned, Swapped}

// States are the names that ParseState takes.
func States() (names []string) {
	for _, s := range states {
		names = append(names, string(s))
	}
	return names
}

// ErrRequest says that a request cannot be carried out as it is written.
var ErrRequest = errors.New("wrong request")

// refusal is what cannot be carried out.
type refusal struct {
	bad  bool
	text string
}

// refuse returns an error that matches ErrRequest of the first one that is bad.
func refuse(list ...refusal) error {
	for _, r := range list {
		if r.bad {
			return fmt.Errorf("%w: %s", ErrRequest, r.text)
		}
	}
	return nil
}

// ErrSkipped says that this machine cannot do what was asked for.
var ErrSkipped = errors.New("not possible on this machine")

// ParseState gives the state of a name.
func ParseState(s string) (State, error) {
	if !slices.Contains(states, State(s)) {
		return "", fmt.Errorf("%w: buffer state %q: want one of %s", ErrRequest, s, strings.Join(States(), ", "))
	}
	return State(s), nil
}

// written tells whether page i of a buffer in this state is written when the
// buffer is made; the others hold zeros, or are not there.
func (s State) written(page int) bool {
	switch s {
	case Absent:
		return false
	case Alternate:
		return page%2 == 1
	}
	return true
}

// Waiting says how the initiator waits for a transfer's end.
type Waiting string

// The ways to wait.
const (
	Poll Waiting = "poll" // look at the descriptor again and again
	Wait Waiting = "wait" // look for a while, then sleep in the kernel
	Auto Waiting = "auto" // Poll up to PollLimit, Wait above
)

// PollLimit is the largest transfer for which Auto polls, bytes.
const PollLimit = 16 << 10

// ParseWaiting gives the way to wait of a name.
func ParseWaiting(s string) (Waiting, error) {
	switch w := Waiting(s); w {
	case Poll, Wait, Auto:
		return w, nil
	}
	return "", fmt.Errorf("%w: waiting %q: want auto, poll or wait", ErrRequest, s)
}

// resolve makes Auto one of the others.
func (w Waiting) resolve(size uint64) Waiting {
	switch {
	case w == Poll, w == Wait:
		return w
	case size <= PollLimit:
		return Poll
	}
	return Wait
}
