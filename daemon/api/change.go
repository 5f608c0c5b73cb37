package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/domain"
	"github.com/exanet/pfd/internal/logs"
)

// kickTime bounds how long a kick waits for the domain's end before it answers.
const kickTime = 2 * time.Second

// owned gives the domain that a change is asked for, if the peer is its owner,
// root, or pfd's own uid. What belongs to others is not told from what is not
// there. On the owning goroutine.
func (n *node) owned(q *query) (domain.Domain, error) {
	dom, ok := n.domains.Domain(q.slot)
	if !ok && q.peer.all {
		return dom, &failure{http.StatusNotFound, control.CodeNotFound,
			fmt.Sprintf("no domain %d/%d: `exanetctl domain` lists them", q.node, q.slot)}
	}
	if !ok || !q.peer.sees(dom.UID) {
		return dom, &failure{http.StatusNotFound, control.CodeNotFound,
			fmt.Sprintf("no domain %d/%d that uid %d may change: `exanetctl domain` lists them; ask for those of others with CAP_SYS_PTRACE, as root has it, or as the user that pfd runs as", q.node, q.slot, q.peer.uid)}
	}
	return dom, nil
}

// grant admits a PDID to a domain by its owner's wish.
func (d *Daemon) grant(ctx context.Context, q *query) (any, error) {
	r := control.Changed{Version: control.Version}
	err := d.each(ctx, q, func(n *node) error {
		if _, err := n.owned(q); err != nil {
			return err
		}
		if err := n.domains.Grant(q.slot, q.pdid); err != nil {
			switch {
			case errors.Is(err, domain.ErrNoDomain):
				return &failure{http.StatusNotFound, control.CodeNotFound, err.Error()}
			case errors.Is(err, domain.ErrPeers), errors.Is(err, domain.ErrPDID):
				return badRequest("%v", err)
			}
			return err
		}
		dom, _ := n.domains.Domain(q.slot)
		r.Domain = d.viewDomain(n, &dom)
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.log.Info("granted", "node", q.node, "slot", q.slot, "pdid", q.pdid, logs.KeyUID, q.peer.uid)
	return r, nil
}

// kick ends an attachment by the wish of its owner or of an operator.
func (d *Daemon) kick(ctx context.Context, q *query) (any, error) {
	r := control.Changed{Version: control.Version}
	var s *session
	err := d.each(ctx, q, func(n *node) error {
		dom, err := n.owned(q)
		if err != nil {
			return err
		}
		r.Domain = d.viewDomain(n, &dom)
		s = n.sessions[q.slot]
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s == nil {
		// Draining already.
		return r, nil
	}
	s.end(attach.ReasonKicked)
	d.log.Info("kicked", "node", q.node, "slot", q.slot, "pid", r.Domain.PID, logs.KeyUID, q.peer.uid)
	timer := time.NewTimer(kickTime)
	defer timer.Stop()
	select {
	case <-s.left:
		r.Ended = true
	case <-timer.C:
	case <-ctx.Done():
	}
	return r, nil
}
