package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/exanet/pfd/daemon/tree"
	"github.com/exanet/pfd/device/atomics"
)

// Values below are defined by this project.
const (
	// ownerAnswers is how long the pfd that has a tree may take to answer about it: an operation waits for
	// that, which delays no other. A process that joins a tree waits for joinAnswers, which delays its other
	// requests; the libraries join again until the link may be down no longer.
	ownerAnswers = 5 * time.Second
	joinAnswers  = time.Second
	// tellPause is after what time a host is told all again whose link had no room for a message.
	tellPause = 100 * time.Millisecond
)

// errOwner means that the pfd that has a tree has not answered.
var errOwner = errors.New("the pfd of another host, which has the tree, does not answer")

// tell sends a message about a tree to the pfd of another host. The directory calls it.
func (t *trees) tell(host string, m tree.Message) bool {
	b := m.Encode()
	err := t.d.features.Tell(host, b[:])
	if err == nil {
		return true
	}
	t.againMu.Lock()
	defer t.againMu.Unlock()
	if !t.again[host] {
		t.again[host] = true
		time.AfterFunc(tellPause, func() {
			t.againMu.Lock()
			t.again[host] = false
			t.againMu.Unlock()
			t.dir.TellAgain(host) // does nothing if the link is down
		})
	}
	return false
}

// find waits until the owner of a tree has said whose it is. A tree of which it says nothing is forgotten.
func (t *trees) find(ctx context.Context, p atomics.Protection, most time.Duration) error {
	ask := true
	err := t.owner(ctx, most, func() (wait <-chan struct{}, err error) {
		_, wait, err = t.dir.Find(p, ask)
		ask = false
		return wait, err
	})
	if errors.Is(err, errOwner) || errors.Is(err, errStopped) {
		t.dir.Unanswered(p)
	}
	return err
}

// confirm waits until the owner of a thread's tree knows of the thread.
func (t *trees) confirm(ctx context.Context, th tree.Thread) error {
	return t.owner(ctx, joinAnswers, func() (<-chan struct{}, error) { return t.dir.Confirm(th) })
}

// owner calls look each time what it returned is closed, until it returns nil, for a time at most.
func (t *trees) owner(ctx context.Context, most time.Duration, look func() (<-chan struct{}, error)) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		wait, err := look()
		if wait == nil || err != nil {
			return err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return fmt.Errorf("%w within %v: %w", errOwner, most, ctx.Err())
		case <-t.d.stopped:
			return errStopped
		}
	}
}

// enterAbroad makes a tree of another host known here, unless it has ended.
func (t *trees) enterAbroad(p atomics.Protection) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	uid, wait, err := t.dir.Find(p, false)
	if err == nil && wait != nil {
		err = errOwner
	}
	if err == nil && t.live[p] == nil {
		t.live[p] = &liveTree{id: p, uid: uid, memories: map[int]*memory{}}
	}
	return err
}
