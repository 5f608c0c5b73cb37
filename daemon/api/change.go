package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/daemon/control"
	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/daemon/session"
	"github.com/exanet/pfd/internal/logs"
)

// kickTime bounds the wait for the domain's end before a kick is answered. Defined by this
// project.
const kickTime = 2 * time.Second

// owned returns the domain that a request wants to change, if the peer may (Peer.sees). The
// answer does not reveal whether there is a domain of another user. On the owning goroutine.
func owned(n *session.Node, q *query) (domain.Domain, error) {
	dom, ok := n.Manager().Domain(q.slot)
	if ok && q.peer.sees(dom.UID) {
		return dom, nil
	}
	text := fmt.Sprintf("no domain %d/%d: `exanetctl domain` lists them", q.node, q.slot)
	if !q.peer.All {
		text = fmt.Sprintf("no domain %d/%d that uid %d may change: `exanetctl domain` lists them; ask for those of others with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as", q.node, q.slot, q.peer.UID)
	}
	return dom, &failure{http.StatusNotFound, control.CodeNotFound, text}
}

// grant admits a PDID to a domain.
func (srv *Server) grant(ctx context.Context, q *query) (any, error) {
	r := control.Changed{Version: control.Version}
	err := srv.host.Each(ctx, q.node, func(n *session.Node) error {
		if _, err := owned(n, q); err != nil {
			return err
		}
		if err := n.Manager().Grant(q.slot, q.pdid); err != nil {
			switch {
			case errors.Is(err, domain.ErrNoDomain):
				return &failure{http.StatusNotFound, control.CodeNotFound, err.Error()}
			case errors.Is(err, domain.ErrPeers), errors.Is(err, domain.ErrNames), errors.Is(err, domain.ErrPDID):
				return badRequest("%v", err)
			}
			return err
		}
		dom, _ := n.Manager().Domain(q.slot)
		r.Domain = viewDomain(n.Number(), &domainOf{dom, n.Info(dom.Slot)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	srv.log.Info("granted", "node", q.node, "slot", q.slot, "pdid", q.pdid, logs.KeyUID, q.peer.UID)
	return r, nil
}

// kick ends an attachment.
func (srv *Server) kick(ctx context.Context, q *query) (any, error) {
	r := control.Changed{Version: control.Version}
	var left <-chan struct{}
	err := srv.host.Each(ctx, q.node, func(n *session.Node) error {
		dom, err := owned(n, q)
		if err != nil {
			return err
		}
		r.Domain = viewDomain(n.Number(), &domainOf{dom, n.Info(dom.Slot)})
		left = n.End(q.slot, attach.ReasonKicked)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if left == nil {
		// It is already draining.
		return r, nil
	}
	srv.log.Info("kicked", "node", q.node, "slot", q.slot, "pid", r.Domain.PID, logs.KeyUID, q.peer.UID)
	timer := time.NewTimer(kickTime)
	defer timer.Stop()
	select {
	case <-left:
		r.Ended = true
	case <-timer.C:
	case <-ctx.Done():
	}
	return r, nil
}
