package session

import (
	"testing"

	"github.com/exanet/pfd/daemon/domain"
	"github.com/exanet/pfd/fault"
)

// Another process's faults in the same slot, before, are not those of the next
// user of the slot: its PDID and the time of its attachment tell.
func TestFormerFaultsStayWithTheirUser(t *testing.T) {
	const slot, user, stranger = 3, 1000, 5711
	dom := domain.Domain{Slot: slot, PDID: 9, PID: 77}
	n := &Node{d: &Host{cfg: Config{Now: func() int64 { return 100 }}}}
	rec := &fault.Record{Slot: slot, PDID: dom.PDID, Interrupt: 50}
	sees := func(uid uint32) bool {
		o := n.TenantOf(rec)
		return o.PID != 0 && o.UID == uid
	}
	mine := &session{uid: user, joined: joined{domain: dom, since: 10}}
	n.sessions[slot] = mine
	if sees(stranger) || !sees(user) {
		t.Error("a stranger has the fault, or its user has it not")
	}
	n.sessions[slot] = &session{uid: stranger, joined: mine.joined}
	if !sees(stranger) {
		t.Error("who has the slot and the time has not the fault")
	}
	// The attachment has ended, and another user has the slot and the PDID.
	n.sessions[slot].joined.since = rec.Interrupt + 1
	n.formerly(slot, mine.tenancyOf(rec.Interrupt))
	if sees(stranger) || !sees(user) {
		t.Error("the next owner of the slot has the fault, or its user has it no more")
	}
	for range formerTenants {
		n.formerly(slot, Tenancy{})
	}
	if o := n.TenantOf(rec); o.PID != 0 || sees(user) || len(n.former[slot]) != formerTenants {
		t.Errorf("too many are remembered: %d", len(n.former[slot]))
	}
}
