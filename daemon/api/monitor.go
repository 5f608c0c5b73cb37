package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/fault"
)

// monitorDepth bounds the faults that wait for a client that follows them; further ones are only
// counted. Defined by this project.
const monitorDepth = 4096

// Observe handles a fault whose outcome is final. On the owning goroutine; it never blocks.
func (srv *Server) Observe(n *session.Node, rec *fault.Record) {
	srv.times[n.Index()].observe(rec)
	list := srv.watchers.list.Load()
	if list == nil {
		return
	}
	f := session.Fault{Record: *rec, Owner: n.Owner(rec)}
	for _, w := range *list {
		if w.node != control.AllNodes && w.node != n.Index() || !w.peer.shows(&f.Owner) {
			continue
		}
		select {
		case w.ch <- srv.viewFault(n.Index(), &f):
		default:
			w.lost.Add(1)
		}
	}
}

// monitor streams a line per fault until the client leaves or pfd ends. It drops a client that
// does not read for controlWriteTime.
func (srv *Server) monitor(rw http.ResponseWriter, r *http.Request, q *query) {
	if !srv.monitors.Take(q.peer.UID) {
		reply(rw, nil, &failure{http.StatusServiceUnavailable, control.CodeBusy,
			fmt.Sprintf("uid %d follows the faults %d times already, or all users do too often: end one of these first", q.peer.UID, monitorsPerUID)})
		return
	}
	defer srv.monitors.Give(q.peer.UID)
	w := &watcher{peer: q.peer, node: q.node, ch: make(chan control.Fault, monitorDepth)}
	defer srv.watchers.add(w)()
	ctx, cancel := srv.stream(r)
	defer cancel()
	rc := http.NewResponseController(rw)
	enc := json.NewEncoder(rw)
	line := func(e control.FaultEvent) bool {
		e.Version = control.Version
		return rc.SetWriteDeadline(time.Now().Add(controlWriteTime)) == nil && enc.Encode(e) == nil
	}
	rw.Header().Set("Content-Type", "application/x-ndjson")
	// The first line says that all later faults will follow.
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
		// Flush when no more lines wait.
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
