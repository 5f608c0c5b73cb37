package daemon

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

// Who is refused himself is no reason to refuse another one that joins the group.
func TestRefusedMemberOfAGroup(t *testing.T) {
	r := start(t)
	r.fake.do(func() { r.fake.refuse = errFake })
	owned, free := make(chan struct{}), make(chan struct{})
	r.fake.post(func() { close(owned); <-free }) // so that it is listed for a while
	<-owned
	attached := make(chan error, 1)
	go func() {
		_, err := dialAndGreet(r.ctx(), r.attachSocket(), hello())
		attached <- err
	}()
	var s *session
	for deadline := time.Now().Add(patience); s == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		for s = range r.live {
		}
		r.mu.Unlock()
	}
	close(free)
	if err := <-attached; err == nil || s == nil {
		t.Fatalf("attached: %v, listed: %v", err, s != nil)
	}
	if !s.leaves() {
		t.Error("it is still a member")
	}
}
