package daemon

import (
	"slices"
	"time"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/fault"
)

// formerTenants is how many attachments of a slot are remembered after their end (ours):
// their faults stand in the log for longer, and are then nobody's.
const formerTenants = 32

// tenancy is an attachment and its time, by Daemon.now.
type tenancy struct {
	tenant
	pid          int
	since, until int64
}

// had reports whether a fault was this attachment's.
func (t *tenancy) had(rec *fault.Record) bool {
	return t.pdid == rec.PDID && began(rec) >= t.since && began(rec) <= t.until
}

// tenancyOf gives that of a session, as it is now.
func (s *session) tenancyOf(now int64) tenancy {
	return tenancy{
		tenant: tenant{s.uid, s.joined.domain.PDID, s.joined.domain.Generation, now - s.joined.since},
		pid:    s.joined.domain.PID, since: s.joined.since, until: now,
	}
}

// formerly remembers the attachment of a session that ends, in the place of the oldest.
// On the owning goroutine.
func (n *node) formerly(slot int, t tenancy) {
	list := &n.former[slot]
	if len(*list) == formerTenants {
		*list = slices.Delete(*list, 0, 1)
	}
	*list = append(*list, t)
}

// owner gives whose a fault is: of who has its slot, or had it then. On the owning
// goroutine.
func (n *node) owner(rec *fault.Record, now int64) (tenancy, bool) {
	if rec.Slot < 0 || rec.Slot >= len(n.sessions) {
		return tenancy{}, false
	}
	if s := n.sessions[rec.Slot]; s != nil {
		if t := s.tenancyOf(now); t.had(rec) {
			return t, true
		}
	}
	for _, t := range slices.Backward(n.former[rec.Slot]) {
		if t.had(rec) {
			return t, true
		}
	}
	return tenancy{}, false
}

// ownFault is a fault and whose it is; pid 0: nobody's whom pfd remembers.
type ownFault struct {
	fault.Record
	owner tenancy
}

// ownFaults gives the last faults, the oldest first. On the owning goroutine.
func (d *Daemon) ownFaults(n *node, many int) []ownFault {
	now := d.now()
	var list []ownFault
	for _, rec := range n.faults.Records(many) {
		o, _ := n.owner(&rec, now)
		list = append(list, ownFault{rec, o})
	}
	return list
}

// shows reports whether a peer may see a fault of such an owner.
func (p peer) shows(o *tenancy) bool { return p.all || o.pid != 0 && p.sees(o.uid) }

// viewFault shows a fault as the control interface does.
func (d *Daemon) viewFault(index int, rec *fault.Record, owner *tenancy) control.Fault {
	f := viewFault(index, rec)
	f.PID = owner.pid
	f.AgeNS = max(d.now()-began(rec), 0)
	f.UnixNS = time.Now().UnixNano() - f.AgeNS
	return f
}
