package session

import (
	"testing"
	"time"

	"github.com/exanet/pfd/internal/keeper"
)

// A process that dies while another one joins its group is no reason to refuse that
// one: it may have no memory any more and not have ended yet.
func TestDyingMemberOfAGroup(t *testing.T) {
	left := false
	for try := 0; !left && try < 20; try++ { // a slow machine may end the process later than leaves waits for it
		left = leavesWhile(t, true)
	}
	if !left {
		t.Error("a session whose process dies does not leave")
	}
	if leavesWhile(t, false) {
		t.Error("a session whose process lives leaves")
	}
}

// leavesWhile reports whether a session leaves whose process dies meanwhile, or does not.
func leavesWhile(t *testing.T, dies bool) bool {
	t.Helper()
	k, err := keeper.Start()
	if err != nil {
		t.Fatal(err)
	}
	f, err := exitFile(k.PIDFD())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &session{keeper: f, leaving: make(chan struct{})}
	over := make(chan struct{})
	time.AfterFunc(10*time.Millisecond, func() {
		defer close(over)
		if !dies {
			return
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond) // its session goes on for a moment
		close(s.leaving)
	})
	left := s.awaitLeaving()
	<-over
	if !dies {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
	return left
}
