package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/fault"
)

// monitorDepth is how many faults wait for a client that follows them; what
// comes beyond that is counted and left out (ours).
const monitorDepth = 4096

// Clients that follow the faults, of one uid and of all (ours): each costs the
// engine something at each fault.
const (
	monitorsPerUID = 4
	allMonitors    = 32
)

// watcher is a client that follows the faults.
type watcher struct {
	peer peer
	node int
	ch   chan control.Fault
	lost atomic.Uint64
}

// watch lists a watcher. What a fault costs without one is one load.
func (d *Daemon) watch(w *watcher) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setWatchers(func(list []*watcher) []*watcher { return append(list, w) })
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.setWatchers(func(list []*watcher) []*watcher {
			kept := list[:0]
			for _, o := range list {
				if o != w {
					kept = append(kept, o)
				}
			}
			return kept
		})
	}
}

// setWatchers replaces the list: the owner reads it without a lock.
func (d *Daemon) setWatchers(change func([]*watcher) []*watcher) {
	var list []*watcher
	if p := d.watchers.Load(); p != nil {
		list = append(list, *p...)
	}
	if list = change(list); len(list) == 0 {
		d.watchers.Store(nil)
		return
	}
	d.watchers.Store(&list)
}

// observe takes a fault whose outcome is final. On the owning goroutine; it
// never blocks.
func (d *Daemon) observe(n *node, rec *fault.Record) {
	n.times.observe(rec)
	n.records.fault(rec)
	if s := n.sessions[rec.Slot]; s != nil {
		s.tellCounts()
	}
	list := d.watchers.Load()
	if list == nil {
		return
	}
	owner, _ := n.owner(rec, d.now())
	for _, w := range *list {
		if w.node != control.AllNodes && w.node != n.index || !w.peer.shows(&owner) {
			continue
		}
		select {
		case w.ch <- d.viewFault(n.index, rec, &owner):
		default:
			w.lost.Add(1)
		}
	}
}

// monitor answers with one line a fault until the client leaves or pfd ends. A
// client that does not read for controlWriteTime is dropped.
func (d *Daemon) monitor(rw http.ResponseWriter, r *http.Request, q *query) {
	if !d.monitors.Take(q.peer.uid) {
		reply(rw, nil, &failure{http.StatusServiceUnavailable, control.CodeBusy,
			fmt.Sprintf("uid %d follows the faults %d times already, or all users do too often: end one of these first", q.peer.uid, monitorsPerUID)})
		return
	}
	defer d.monitors.Give(q.peer.uid)
	w := &watcher{peer: q.peer, node: q.node, ch: make(chan control.Fault, monitorDepth)}
	defer d.watch(w)()
	ctx, cancel := d.stream(r)
	defer cancel()
	rc := http.NewResponseController(rw)
	enc := json.NewEncoder(rw)
	line := func(e control.FaultEvent) bool {
		e.Version = control.Version
		return rc.SetWriteDeadline(time.Now().Add(controlWriteTime)) == nil && enc.Encode(e) == nil
	}
	rw.Header().Set("Content-Type", "application/x-ndjson")
	// The first line says that what happens from now on will be told.
	if !line(control.FaultEvent{}) || rc.Flush() != nil {
		return
	}
	for {
		select {
		case f := <-w.ch:
			if !line(control.FaultEvent{Fault: &f}) {
				return
			}
		case <-ctx.Done():
			return
		}
		// Lines that are there already go together.
		if len(w.ch) > 0 {
			continue
		}
		if n := w.lost.Swap(0); n > 0 && !line(control.FaultEvent{Lost: n}) {
			return
		}
		if rc.Flush() != nil {
			return
		}
	}
}
