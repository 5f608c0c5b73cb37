package api

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/exanet/pfd/daemon/session"
)

// oneUser is a Host of which one user has attachments. It looks at once.
type oneUser struct {
	Host
	uid   uint32
	nodes []*session.Node
}

func (h *oneUser) Nodes() []*session.Node   { return h.nodes }
func (h *oneUser) Attached(uid uint32) bool { return uid == h.uid }

func (h *oneUser) Each(_ context.Context, i int, f func(*session.Node) error) error {
	return f(h.nodes[i])
}

// For peers that do not see everything, the engine copies nothing if they have no attachment, and
// otherwise once in lookTime, after they asked. A peer that sees everything does not wait.
func TestLooksAreFew(t *testing.T) {
	const user = 1000
	h := &oneUser{uid: user, nodes: []*session.Node{new(session.Node)}}
	var calls atomic.Int64
	f := func(*session.Node) (int64, error) { return calls.Add(1), nil }
	ask := func(l *looks[int64], p Peer) int {
		before := calls.Load()
		list, err := l.look(t.Context(), h, &query{peer: p, node: 0}, f)
		if err != nil {
			t.Error(err)
		}
		for _, s := range list {
			if s.v <= before {
				t.Errorf("answered by look %d, and %d were over when it was asked", s.v, before)
			}
		}
		return len(list)
	}
	var l looks[int64]
	for range 100 {
		if ask(&l, Peer{UID: user + 4711}) != 0 {
			t.Fatal("a stranger is answered")
		}
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d looks for a stranger", n)
	}
	began := time.Now()
	var asking sync.WaitGroup
	for range 100 {
		asking.Go(func() {
			for range 5 {
				if ask(&l, Peer{UID: user}) != 1 {
					t.Error("an attached user is not answered")
				}
			}
		})
	}
	asking.Wait()
	if n, most := calls.Load(), 1+int64(time.Since(began)/lookTime); n < 1 || n > most {
		t.Errorf("%d looks for 500 questions, at most %d are due", n, most)
	}
	calls.Store(0)
	for range 10 {
		ask(&l, Peer{All: true})
	}
	if n := calls.Load(); n != 10 {
		t.Errorf("%d looks for ten questions of who sees all", n)
	}
}

// A user that does not see everything gets one answer in askPause at most, over all connections.
// A peer that sees everything, and another user, do not wait for it.
func TestQuestionsAreSpread(t *testing.T) {
	var b budget
	const questions = 20
	began := time.Now()
	var asking sync.WaitGroup
	for range questions {
		asking.Go(func() { b.wait(t.Context(), Peer{UID: 1}) })
	}
	asking.Wait()
	if took := time.Since(began); took < (questions-1)*askPause {
		t.Errorf("%d questions of a user are answered after %v", questions, took)
	}
	before := b.next[1]
	b.wait(t.Context(), Peer{UID: 1, All: true})
	b.wait(t.Context(), Peer{UID: 2})
	if !b.next[1].Equal(before) || !b.next[2].Before(before.Add(askPause+time.Minute)) {
		t.Error("others are charged for the user's questions")
	}
}
