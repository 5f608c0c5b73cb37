package emu

import (
	"fmt"

	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/trace"
)

// Attach ties a process to a slot of a node. On the owning goroutine.
func (e *Engine) Attach(nodeIndex, slotIndex int, a *Attachment) error {
	n := e.nodes[nodeIndex]
	if n.slots[slotIndex] != nil {
		return fmt.Errorf("%w: slot %d of node %d is attached already", ErrConfig, slotIndex, nodeIndex)
	}
	if a.Space == nil {
		return fmt.Errorf("%w: slot %d of node %d has no memory", ErrConfig, slotIndex, nodeIndex)
	}
	s := &slot{node: n, index: slotIndex, att: a, wasLate: e.lateOf[a.UID] > 0}
	s.process = owner.Process[*slot]{Pages: a.Pages, Wake: a.Wake, UID: a.UID, Helper: a.Space, Slot: s}
	if err := e.loop.Attach(&s.process, e.Now()); err != nil {
		return fmt.Errorf("emulated machine: %w", err)
	}
	s.slowUntil = e.slowUsers[a.UID]
	s.unseenUntil = e.unseenUsers[a.UID]
	n.slots[slotIndex] = s
	a.Pages.SetWatched(e.tracer.on)
	e.tracer.client(s, 0)
	return nil
}

// Detach frees a slot. The machine accesses neither the process's pages nor its memory afterwards. The
// slot must be quiet. On the owning goroutine.
func (e *Engine) Detach(nodeIndex, slotIndex int) {
	n := e.nodes[nodeIndex]
	s := n.slots[slotIndex]
	if s == nil {
		return
	}
	e.loop.Detach(&s.process)
	e.refuseHeld(s)
	// This ends page-ins that have not been requested or answered: they must not touch memory that
	// the session unmaps.
	s.att.Space.Close()
	// The next process of the slot must not see the transfers of this one.
	for i := range e.urgent.items {
		if it := &e.urgent.items[i]; it.node == n && it.action.Kind == soc.DescriptorChanged && int(it.action.Slot) == slotIndex {
			it.action.Kind = 0
		}
	}
	e.tracer.client(s, trace.Final)
	n.slots[slotIndex] = nil
}
