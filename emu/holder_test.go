package emu

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/atomics"
	"github.com/exanet/pfd/soc/gsas"
)

// Operations of the threads of other hosts have one share of a unit, whosever they are; those of own threads
// count for their users, or for their trees while these have no memory.
func TestHolders(t *testing.T) {
	e, err := New(Config{Nodes: 2, Base: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	access := func(node device.NodeID, p atomics.Protection) *gsas.Access {
		return &gsas.Access{Request: atomics.Request{Thread: atomics.ThreadOf(node, device.MailboxThread)}, Tree: p}
	}
	known := &tree{}
	known.UID = 1000
	far := e.holderOf(access(6, 1), nil)
	for name, h := range map[string]holder{
		"of an unknown tree": e.holderOf(access(6, 2), nil), "of a known one": e.holderOf(access(3, 1), known),
	} {
		if h != far {
			t.Errorf("an operation of another host, %s, counts for %+v, not %+v", name, h, far)
		}
	}
	near, other, user := e.holderOf(access(5, 1), nil), e.holderOf(access(4, 2), nil), e.holderOf(access(4, 1), known)
	if near == far || near == other || user != (holder{uid: 1000}) {
		t.Errorf("own threads: %+v, %+v, %+v", near, other, user)
	}
	var l held
	for l.take(far) {
	}
	if l.by[far] != gsas.InFlight/2 || !l.take(near) || !l.take(user) {
		t.Errorf("%d operations of other hosts leave no room", l.by[far])
	}
}
