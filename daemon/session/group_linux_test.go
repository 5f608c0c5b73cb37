package session

import (
	"testing"
	"time"

	"github.com/exanet/pfd/internal/keeper"
)

// A process that dies while another one joins its group is no reason to refuse that
// one: it may have no memory any more and not have ended yet.
func TestDyingMemberOfAGroup(t *testing.T) {
	for _, dies := range []bool{true, false} {
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
		ended := make(chan error)
		time.AfterFunc(10*time.Millisecond, func() {
			if !dies {
				close(ended)
				return
			}
			ended <- k.Close()
			time.Sleep(100 * time.Millisecond) // its session goes on for a moment
			close(s.leaving)
		})
		left := make(chan bool, 1)
		go func() { left <- s.leaves() }()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := <-left; got != dies {
			t.Errorf("dies %v: it leaves %v", dies, got)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
}
