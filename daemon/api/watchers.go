package api

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/exanet/pfd/daemon/control"
)

// Bounds of the clients that follow the faults, each of which costs the engine some time at each
// fault. Values below are defined by this project.
const (
	monitorsPerUID = 4
	allMonitors    = 32
)

// watcher is a client that follows the faults.
type watcher struct {
	peer Peer
	node int
	ch   chan control.Fault
	lost atomic.Uint64
}

// watchers lists the watchers. While there are none, a fault costs one load.
type watchers struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*watcher] // replaced, never changed: the owner of a node reads it without a lock
}

// add lists a watcher until stop is called.
func (l *watchers) add(w *watcher) (stop func()) {
	l.set(func(list []*watcher) []*watcher { return append(list, w) })
	return func() {
		l.set(func(list []*watcher) []*watcher {
			return slices.DeleteFunc(list, func(o *watcher) bool { return o == w })
		})
	}
}

// set replaces the list.
func (l *watchers) set(change func([]*watcher) []*watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*watcher
	if p := l.list.Load(); p != nil {
		list = slices.Clone(*p)
	}
	if list = change(list); len(list) == 0 {
		l.list.Store(nil)
		return
	}
	l.list.Store(&list)
}
