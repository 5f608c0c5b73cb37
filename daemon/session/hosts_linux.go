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
	// ownerAnswers is how long the pfd that has a tree may take to answer about it.
	ownerAnswers = 5 * time.Second
	// tellPause is after what time a host is told all again whose link had no room for a message.
	tellPause = 100 * time.Millisecond
)

// errOwner means that the pfd that has a tree has not answered.
var errOwner = errors.New("the pfd of another host, which has the tree, does not answer")

// SetHosts says which other hosts there are. The trees of one that is not among them any more are lost.
func (d *Host) SetHosts(hosts []tree.Host) {
	if d.trees != nil {
		d.trees.do(d.trees.dir.SetHosts(hosts))
	}
}

// LinkChanged says that the link to another host came up or went down.
func (d *Host) LinkChanged(host tree.Host, up bool) {
	if d.trees != nil {
		d.trees.dir.Changed(host, up)
	}
}

// Told handles a message about trees of the pfd of another host. It does not wait.
func (d *Host) Told(host string, message []byte) {
	if d.trees == nil {
		return
	}
	m, err := tree.Decode(message)
	if err != nil {
		d.log.Warn("a message of another host's pfd", "host", host, "err", err)
		return
	}
	d.trees.do(d.trees.dir.Told(host, m))
}

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

// do does what the directory says about trees that have ended.
func (t *trees) do(e tree.Effects) {
	for _, p := range e.Ended {
		t.over(p)
	}
	for _, p := range e.Lost {
		t.d.log.Warn("a tree of GSAS threads is lost: the pfd of its root has ended, or its host is struck", "tree", fmt.Sprintf("%#x", uint32(p)))
		t.endThreadsOf(p)
	}
}

// endThreadsOf ends the threads of a lost tree.
func (t *trees) endThreadsOf(p atomics.Protection) {
	t.d.mu.Lock()
	defer t.d.mu.Unlock()
	for s := range t.d.live {
		s.n.bus.Post(func() {
			for i, id := range s.threads {
				if id != 0 && t.dir.Alive(id, p) {
					s.endThread(i)
					s.lost[i] = true
					s.pages.EndThread(i)
				}
			}
		})
	}
}

// find waits until the owner of a tree has said whose it is.
func (t *trees) find(ctx context.Context, p atomics.Protection) (uid uint32, err error) {
	ask := true
	err = t.owner(ctx, func() (wait <-chan struct{}, err error) {
		uid, wait, err = t.dir.Find(p, ask)
		ask = false
		return wait, err
	})
	return uid, err
}

// confirm waits until the owner of a thread's tree knows of the thread.
func (t *trees) confirm(ctx context.Context, th tree.Thread) error {
	return t.owner(ctx, func() (<-chan struct{}, error) { return t.dir.Confirm(th) })
}

// owner calls look each time what it returned is closed, until it returns nil.
func (t *trees) owner(ctx context.Context, look func() (<-chan struct{}, error)) error {
	ctx, cancel := context.WithTimeout(ctx, ownerAnswers)
	defer cancel()
	for {
		wait, err := look()
		if wait == nil || err != nil {
			return err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return fmt.Errorf("%w within %v: %w", errOwner, ownerAnswers, ctx.Err())
		case <-t.d.stopped:
			return errStopped
		}
	}
}

// callAbroad performs an operation for a tree that is not known here: another host's, if it is one. On the
// owning goroutine.
func (t *trees) callAbroad(n *Node, c atomics.Call) {
	if _, wait, err := t.dir.Find(c.Protection, true); wait == nil && err != nil {
		t.m.AnswerCall(n.index, c.ID, atomics.Gone)
		return
	}
	go func() {
		_, err := t.find(context.Background(), c.Protection)
		if err == nil {
			err = t.enterAbroad(c.Protection)
		}
		// If the machine has stopped, nobody waits for the answer.
		_ = t.d.Own(context.Background(), n, func() error {
			if err != nil {
				n.log.Debug("an operation of a tree of another host", "err", err)
				t.m.AnswerCall(n.index, c.ID, atomics.Gone)
			} else {
				t.call(n.index, c)
			}
			return nil
		})
	}()
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
