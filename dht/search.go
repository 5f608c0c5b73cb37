package dht

import (
	"context"
	"fmt"
	"time"

	"github.com/exanet/pfd/gsas"
)

// A place is where the search for a key ended: at the element that holds the key, at an empty one that
// may take it, or at one of another key, which has to become indirect first.
type place struct {
	at    gsas.Address // of the element
	found element
	index uint64 // which element of the first level leads there
	level int    // of the container that at lies in; -1 in the first level
}

// find searches for a key.
//
// It ends: a container is searched in at most eight reads, and there are at most containerLevels of
// them, whatever other members of the tree write.
func (t *Table) find(ctx context.Context, key uint64) (place, error) {
	h2 := hash2(key)
	p := place{index: hash1(key, t.log), level: -1}
	p.at = t.first(p.index)
	var err error
	if p.found, err = t.load(ctx, p.at); err != nil {
		return place{}, err
	}
	for p.found.indirect() {
		if p.level+1 == containerLevels {
			return place{}, fmt.Errorf("the element at %#x is indirect, and is of the last level: %w", p.at, ErrCorrupt)
		}
		if p, err = t.findIn(ctx, p, key, h2); err != nil {
			return place{}, err
		}
	}
	return p, nil
}

// findIn searches for a key in the container that p's element points to. The place that it returns is
// indirect if the search goes on below it.
func (t *Table) findIn(ctx context.Context, p place, key, h2 uint64) (place, error) {
	container := gsas.Address(p.found[1])
	if err := t.checkContainer(p.at, container); err != nil {
		return place{}, err
	}
	from := p.at
	p.level++
	var lastOne place
	for i := range bucketElements {
		s := slot(h2, p.level, i)
		p.at = container + elementBytes*gsas.Address(s)
		var err error
		if p.found, err = t.load(ctx, p.at); err != nil {
			return place{}, corruptAt(from, container, err)
		}
		if p.found.empty() || p.found.holds(key) {
			return p, nil
		}
		if s == last(h2, p.level) {
			lastOne = p
		} else if p.found.indirect() {
			return place{}, fmt.Errorf("the element at %#x is indirect, and is not the last one of its bucket: %w", p.at, ErrCorrupt)
		}
	}
	return lastOne, nil
}

// checkContainer checks the pointer of an indirect element: a container is a page of the element's node.
func (t *Table) checkContainer(at, container gsas.Address) error {
	if container%containerBytes != 0 || nodeOf(container) != nodeOf(at) {
		return fmt.Errorf("the element at %#x points to %#x, which is no container of its node: %w", at, container, ErrCorrupt)
	}
	return nil
}

// lockPatience is for how long a search reads a locked element again before it asks whether the thread
// that holds the lock is alive, then after twice that and so on, at least each askAgain; lockLimit is for how
// long it waits for one that is. The link to its host may be down for nine seconds (package gsas).
const (
	lockPatience = time.Millisecond
	askAgain     = 100 * time.Millisecond
	lockLimit    = 10 * time.Second
)

// load reads an element that nobody holds the lock of. The lock of a thread that has ended is taken
// away: the element is whole, since each write of it is one operation.
func (t *Table) load(ctx context.Context, at gsas.Address) (element, error) {
	w, err := t.memory.Load256(ctx, at)
	e := element(w)
	if err != nil || !e.locked() {
		return e, err
	}
	began := time.Now()
	for start, ask := began, lockPatience; ; {
		time.Sleep(lockPatience / 10)
		if w, err = t.memory.Load256(ctx, at); err != nil || !element(w).locked() {
			return element(w), err
		}
		if e != element(w) {
			e, start, ask = element(w), time.Now(), lockPatience
		}
		switch {
		case time.Since(began) > lockLimit: // also if others take it one after the other
			return element{}, fmt.Errorf("thread %#x holds the lock of the element at %#x: %w", e.holder(), at, ErrBusy)
		case time.Since(start) > ask:
			ask += min(ask, askAgain)
			alive, err := t.memory.Alive(ctx, e.holder())
			if err != nil {
				return element{}, err
			}
			if !alive {
				free := e
				free[0] = e.next(e[0] & (flagIndirect | flagDeleted | flagRecord))
				if _, err := t.memory.CompareStore256(ctx, at, e[0], free); err != nil {
					return element{}, err
				}
			}
		}
	}
}
