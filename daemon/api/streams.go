package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/emu/capture"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/version"
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
	f := session.Fault{Record: *rec, Tenant: n.TenantOf(rec)}
	for _, w := range *list {
		if w.node != control.AllNodes && w.node != n.Number() || !w.peer.shows(&f.Tenant) {
			continue
		}
		select {
		case w.ch <- srv.viewFault(n.Number(), &f):
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

// leftTime is the interval of checks that the client of a stream is still there. Defined by this
// project.
const leftTime = 5 * time.Second

// stream returns a context that ends when the client of a stream leaves, or pfd ends. Package
// http does not notice that a client leaves if it has sent more than its request.
func (srv *Server) stream(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		defer cancel()
		tick := time.NewTicker(leftTime)
		defer tick.Stop()
		for {
			select {
			case <-srv.host.Draining():
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				if c, ok := ctx.Value(connKey{}).(*peerConn); ok && c.left() {
					return
				}
			}
		}
	}()
	return ctx, cancel
}

// capture streams the packets of the nodes' links until the client leaves or pfd ends. It drops
// a client that does not read for controlWriteTime.
func (srv *Server) capture(rw http.ResponseWriter, r *http.Request, q *query) {
	tap := srv.features.Tap
	switch {
	case !q.peer.All:
		reply(rw, nil, forbidden("links carry the bytes of all users"))
		return
	case tap == nil:
		reply(rw, nil, &failure{http.StatusNotImplemented, control.CodeNotSupported,
			"the links of a device elsewhere do not pass through pfd: start its server with exanetctl emu serve --capture FILE"})
		return
	}
	c := &capture.Capture{All: q.node == control.AllNodes, Snap: q.snap}
	if !c.All {
		c.Node = device.NodeID(q.node)
	}
	if srv.cfg.Links != nil {
		hosts := srv.cfg.Links.View().Hosts
		c.Host = func(id device.NodeID) string {
			for i := range hosts {
				if h := &hosts[i]; h.FirstNode <= uint32(id) && uint32(id) <= h.LastNode {
					return h.Name
				}
			}
			return ""
		}
	}
	// One capture is open at a time.
	if !srv.capturing.CompareAndSwap(false, true) {
		reply(rw, nil, &failure{http.StatusServiceUnavailable, control.CodeBusy, "a capture is open already: end that one first"})
		return
	}
	defer srv.capturing.Store(false)
	tap(c.See)
	defer tap(nil)
	ctx, cancel := srv.stream(r)
	defer cancel()
	rc := http.NewResponseController(rw)
	rw.Header().Set("Content-Type", "application/x-pcapng")
	node := "all"
	if q.node != control.AllNodes {
		node = strconv.Itoa(q.node)
	}
	srv.log.Info("capture", "node", node, logs.KeyUID, q.peer.UID)
	// An error means that the client has left.
	_ = c.Copy(ctx.Done(), "pfd "+version.String(), func(b []byte) error {
		if err := rc.SetWriteDeadline(time.Now().Add(controlWriteTime)); err != nil {
			return err
		}
		if _, err := rw.Write(b); err != nil {
			return err
		}
		return rc.Flush()
	})
}
