package daemon

import (
	"testing"
	"time"
)

// Who does not see everything has the engine copy nothing where he has nothing
// there, and once in lookTime where he has; who sees all is told what is there now.
func TestLooksAreFew(t *testing.T) {
	r := start(t)
	g := r.attach(hello())
	calls := 0
	f := func(*node) (int, error) { calls++; return calls, nil }
	ask := func(l *looks[int], p peer) (n int) {
		t.Helper()
		list, err := l.look(t.Context(), r.Daemon, &query{peer: p, node: 0}, f)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	var l looks[int]
	for range 100 {
		if ask(&l, peer{uid: g.Peer().UID + 4711}) != 0 {
			t.Fatal("a stranger is answered")
		}
	}
	if calls != 0 {
		t.Errorf("%d looks for a stranger", calls)
	}
	began := time.Now()
	for range 1000 {
		if ask(&l, peer{uid: g.Peer().UID}) != 1 {
			t.Fatal("an attached user is not answered")
		}
	}
	if most := 1 + int(time.Since(began)/lookTime); calls < 1 || calls > most {
		t.Errorf("%d looks for 1000 questions, at most %d are due", calls, most)
	}
	calls = 0
	for range 10 {
		ask(&l, peer{all: true})
	}
	if calls != 10 {
		t.Errorf("%d looks for ten questions of who sees all", calls)
	}
}
