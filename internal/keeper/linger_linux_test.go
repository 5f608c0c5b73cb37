package keeper

import (
	"sync"
	"testing"

	"github.com/exanet/pfd/internal/linger"
)

// Another thread closes a socket that lingers while the keeper has a copy of it. Closing the
// copy blocks neither the keeper nor its creator.
func TestKeeperWhileLingeringSocketsAreClosed(t *testing.T) {
	q, err := linger.New()
	if err != nil {
		t.Fatal(err)
	}
	var closing sync.WaitGroup
	for range 40 {
		f, err := q.Socket()
		if err != nil {
			t.Fatal(err)
		}
		closing.Go(func() { _ = f.Close() })
		k, err := Start()
		if err != nil {
			t.Error(err)
			break
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	closing.Wait()
}
