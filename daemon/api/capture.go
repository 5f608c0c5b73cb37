package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/emu/capture"
	"github.com/exanet/pfd/internal/logs"
	"github.com/exanet/pfd/internal/version"
)

// capture streams the packets of the nodes' links until the client leaves or pfd ends. It drops
// a client that does not read for controlWriteTime.
func (srv *Server) capture(rw http.ResponseWriter, r *http.Request, q *query) {
	tap := srv.features.Tap
	switch {
	case !q.peer.All:
		reply(rw, nil, &failure{http.StatusForbidden, control.CodeForbidden,
			"links carry the bytes of all users: ask with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as"})
		return
	case tap == nil:
		reply(rw, nil, &failure{http.StatusNotImplemented, control.CodeNotSupported,
			"the links of a device elsewhere do not pass through pfd: start its server with exanetctl emu serve --capture FILE"})
		return
	}
	c := &capture.Capture{All: q.node == control.AllNodes, Snap: q.snap}
	if !c.All {
		c.Node = srv.host.Nodes()[q.node].ID()
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
