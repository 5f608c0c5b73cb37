package session

import (
	"slices"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/fault"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/netlink"
	"github.com/exanet/pfd/space/proc"
)

// Info describes an attachment. Its counts begin when the process attached.
type Info struct {
	Process     *proc.Process
	Method      pagein.Method
	Policy      pagein.Policy
	AgeNS       int64
	Rings       int
	Faults      fault.Counts
	Invalidated tally.Invalidated
	Transfers   *tally.Sum // nil: the machine does not count them
}

// Info describes the attachment that has a slot, nil if there is none. On the owning
// goroutine.
func (n *Node) Info(slot int) *Info {
	s := n.sessions[slot]
	if s == nil {
		return nil
	}
	i := &Info{
		Process: s.process, Method: s.method, Policy: s.policy, AgeNS: n.d.cfg.Now() - s.joined.since, Rings: s.bells.Len(),
		Faults: s.counts(), Invalidated: s.invalidated(),
	}
	if ended := n.d.features.Transfers; ended != nil {
		t := ended(n.index).Slots[slot].Less(s.joined.transfersBefore)
		i.Transfers = &t
	}
	return i
}

// Threads returns the GSAS threads of the attachment that has a slot. On the owning goroutine.
func (n *Node) Threads(slot int) (list []atomics.Thread) {
	if s := n.sessions[slot]; s != nil {
		for _, id := range s.threads {
			if id != 0 {
				list = append(list, id)
			}
		}
	}
	return list
}

// End ends the attachment that has a slot, and returns a channel that is closed when the slot
// is free; nil: no attachment has it. On the owning goroutine.
func (n *Node) End(slot int, r attach.Reason) <-chan struct{} {
	s := n.sessions[slot]
	if s == nil {
		return nil
	}
	s.end(r)
	return s.left
}

// Counts are a node's counters besides those of its fault driver.
type Counts struct {
	Asked           netlink.SenderCounters // fault messages to processes
	Strays          uint64                 // messages of others to pfd's netlink socket
	Mailbox         uint64                 // messages drained from pfd's mailboxes
	Attached, Ended uint64                 // attachments
	Invalidated     tally.Invalidated      // memory that was taken away
}

// Counts returns what the node has counted. On the owning goroutine.
func (n *Node) Counts() Counts {
	n.asking.Lock()
	n.strays += n.sender.Drain()
	n.asking.Unlock()
	c := Counts{
		Asked: n.sender.Counters(), Strays: n.strays, Mailbox: n.mailbox,
		Attached: n.attached, Ended: n.ended, Invalidated: n.invalidated,
	}
	if gone := n.d.features.Invalidations; gone != nil {
		for _, v := range gone(n.index) {
			c.Invalidated = c.Invalidated.Plus(v)
		}
	}
	for _, s := range n.sessions {
		if s != nil {
			c.Invalidated = c.Invalidated.Plus(s.told())
		}
	}
	return c
}

// tellCounts writes the counts of the process's faults into its pages. On the owning
// goroutine.
func (s *session) tellCounts() {
	now, gone := s.counts(), s.invalidated()
	s.pages.SetFaultCounts(attach.FaultCounts{
		Faults: now.Entries, Pages: now.Pages, Failed: now.Unresolvable,
		Invalidated: gone.Pages, Invalidations: gone.Calls, Conflicts: gone.Conflicts,
	})
}

// counts returns what the fault driver has counted since the process attached. On the
// owning goroutine.
func (s *session) counts() fault.Counts {
	now := s.n.faults.Slot(s.joined.domain.Slot)
	return now.Less(&s.joined.base)
}

// invalidations returns the invalidations of a slot that the machine has seen.
func (n *Node) invalidations(slot int) (i tally.Invalidated) {
	if count := n.d.features.Invalidations; count != nil {
		i = count(n.index)[slot]
	}
	return i
}

// invalidated returns the invalidations of the process's memory since it attached that the
// machine or its userfaultfds have seen. On the owning goroutine.
func (s *session) invalidated() tally.Invalidated {
	return s.n.invalidations(s.joined.domain.Slot).Less(s.joined.invalidatedBefore).Plus(s.told())
}

// told returns the invalidations that its userfaultfds have seen.
func (s *session) told() (i tally.Invalidated) {
	if s.regions != nil {
		i.Calls, i.Conflicts = s.regions.Seen()
	}
	return i
}

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

// TenantOf returns the attachment that had the slot of a fault at its time. On the owning
// goroutine.
func (n *Node) TenantOf(rec *fault.Record) Tenancy {
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
	Tenant Tenancy
}

// Faults returns the last faults, the oldest first. On the owning goroutine.
func (n *Node) Faults(many int) (list []Fault) {
	for _, rec := range n.faults.Records(many) {
		list = append(list, Fault{rec, n.TenantOf(&rec)})
	}
	return list
}
