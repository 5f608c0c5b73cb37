package session

import (
	"slices"

	"github.com/exanet/pfd/fault"
)

// formerTenants bounds the attachments of a slot that pfd remembers after their end. Older
// faults in the log belong to nobody. Defined by this project.
const formerTenants = 32

// had reports whether a fault belongs to the attachment.
func (t *Tenancy) had(rec *fault.Record) bool {
	return t.PDID == rec.PDID && rec.Began() >= t.Since && rec.Began() <= t.Until
}

// tenancyOf returns the session's tenancy until now.
func (s *session) tenancyOf(now int64) Tenancy {
	dom := &s.joined.domain
	return Tenancy{UID: s.uid, PID: dom.PID, PDID: dom.PDID, Generation: dom.Generation, Since: s.joined.since, Until: now}
}

// formerly remembers an attachment that has ended, in place of the oldest. On the owning
// goroutine.
func (n *Node) formerly(slot int, t Tenancy) {
	list := &n.former[slot]
	if len(*list) == formerTenants {
		*list = slices.Delete(*list, 0, 1)
	}
	*list = append(*list, t)
}

// Tenant returns the attachment that has a slot. On the owning goroutine.
func (n *Node) Tenant(slot int) (t Tenancy) {
	if s := n.sessions[slot]; s != nil {
		t = s.tenancyOf(n.d.cfg.Now())
	}
	return t
}

// Owner returns the attachment that had the slot of a fault at its time. On the owning
// goroutine.
func (n *Node) Owner(rec *fault.Record) Tenancy {
	if rec.Slot < 0 || rec.Slot >= len(n.sessions) {
		return Tenancy{}
	}
	if t := n.Tenant(rec.Slot); t.had(rec) {
		return t
	}
	for _, t := range slices.Backward(n.former[rec.Slot]) {
		if t.had(rec) {
			return t
		}
	}
	return Tenancy{}
}

// Fault is a fault and its attachment; PDID 0: none that pfd remembers.
type Fault struct {
	fault.Record
	Owner Tenancy
}

// Faults returns the last faults, the oldest first. On the owning goroutine.
func (n *Node) Faults(many int) (list []Fault) {
	for _, rec := range n.faults.Records(many) {
		list = append(list, Fault{rec, n.Owner(&rec)})
	}
	return list
}
