package emu

import (
	"fmt"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/trace"
)

// processes makes the engine an owner.User.
type processes struct{ *Engine }

// Ring implements owner.User.
func (e processes) Ring(p *owner.Process[*slot], channel int) {
	e.ring(p.Slot, channel, soc.DoorbellRung)
}

// Send implements owner.User.
func (e processes) Send(p *owner.Process[*slot], thread, channel int, m *attach.Message) uint64 {
	s := p.Slot
	if thread != owner.Own {
		return e.send(s, int(s.threads[thread]), channel, m)
	}
	if s.declines(m) {
		return device.PktzFree
	}
	if m.N > 0 && m.Mailbox == device.MailboxRequest && mailbox.OpcodeOf(m.Words[0]) == mailbox.OpDoorbell {
		// The firmware is going to read the descriptor: copy it now.
		if d, err := mailbox.DecodeDoorbell(m.Words[0]); err == nil && d.Slot() == s.index {
			e.ring(s, int(d.Channel)%device.ChannelsPerSlot, soc.DescriptorCopied)
		}
	}
	return e.send(s, device.MailboxProcess+s.index, channel, m)
}

// send sends a message of interface iface, and returns its channel's status.
func (e *Engine) send(s *slot, iface, channel int, m *attach.Message) uint64 {
	e.step(s.node, &soc.Event{
		Kind: soc.MessageSent, Interface: iface, Channel: channel,
		Destination: packetizer.Destination(m.Node, m.Mailbox, m.Generation), Words: m.Words, N: m.N, Number: m.Number,
	})
	return uint64(s.node.soc.PacketizerStatus(iface, channel))
}

// Room implements owner.User.
func (e processes) Room(p *owner.Process[*slot], thread int) bool {
	return e.deliverMail(p.Slot, thread)
}

// Answers implements owner.User.
func (processes) Answers(p *owner.Process[*slot]) bool {
	s := p.Slot
	return s.waits > 0 && s.att.Space.Asks()
}

// Busy implements owner.User.
func (processes) Busy(p *owner.Process[*slot]) bool { return len(p.Slot.held)+p.Slot.waits > 0 }

// Mutes implements owner.User.
func (processes) Mutes(p *owner.Process[*slot]) { p.Slot.node.accesses.Muted++ }

// Fired implements owner.User. The loop watches no descriptor but its own.
func (processes) Fired(int) {}

// ring passes the doorbell of a channel, or a copy of its descriptor, to the node.
func (e *Engine) ring(s *slot, ch int, kind soc.EventKind) {
	e.traceDoorbell(s, ch)
	ev := soc.Event{Kind: kind, Slot: s.index, Channel: ch}
	if ch < device.ChannelsPerSlot {
		var d device.Descriptor
		s.att.Pages.Descriptor(ch, &d)
		ev.Words = d.Words()
	}
	e.step(s.node, &ev)
}

// mailArrived delivers the mail of interface iface, 16..63, if a process has it.
func (e *Engine) mailArrived(n *node, iface int) {
	if t := n.threads[iface%device.Interfaces]; t.slot != nil {
		e.deliverMail(t.slot, t.index)
	} else if s := n.slots[(iface-device.MailboxProcess)%device.Slots]; s != nil && iface < device.MailboxThread {
		e.deliverMail(s, owner.Own)
	}
}

// deliverMail moves messages from the node's mailbox to the ring of the process, or of a thread of
// it, while there is room. The rest follows when the process has read some. It reports whether it has
// moved any.
func (e *Engine) deliverMail(s *slot, thread int) bool {
	box := device.MailboxProcess + s.index
	if thread != owner.Own {
		box = int(s.threads[thread])
	}
	any := s.process.Deliver(thread, func(m *attach.Mail) bool {
		source, words, ok := s.node.soc.TakeMail(box)
		if !ok {
			return false
		}
		if e.recorder != nil {
			e.recorder.Take(e.clock.now, s.node.index, box, source, &words, ok)
		}
		*m = attach.Mail{Source: source.Encode(), Words: words}
		return true
	})
	if any && thread == owner.Own {
		e.struck = e.struck || s.att.Pages.Waiting()
		e.strike(s, s.att.Bells.Mail())
	}
	return any
}

// AttachThread connects interface iface, 32..63, of a node to thread index of the process in a slot, whose
// Port was reset. On the owning goroutine.
func (e *Engine) AttachThread(nodeIndex, slotIndex, index, iface int) error {
	n := e.nodes[nodeIndex]
	s := n.slots[slotIndex]
	switch {
	case s == nil || !s.att.Pages.HasThreads():
		return fmt.Errorf("%w: slot %d of node %d has no threads", ErrConfig, slotIndex, nodeIndex)
	case iface < device.MailboxThread || iface >= device.Interfaces || n.threads[iface].slot != nil:
		return fmt.Errorf("%w: interface %d of node %d is taken or no thread's", ErrConfig, iface, nodeIndex)
	case index < 0 || index >= attach.MaxThreads || s.threads[index] != 0:
		return fmt.Errorf("%w: slot %d of node %d has thread %d already, or cannot have it", ErrConfig, slotIndex, nodeIndex, index)
	}
	n.threads[iface] = thread{s, index}
	s.threads[index] = uint8(iface)
	s.process.AddThread(index)
	return nil
}

// DetachThread undoes AttachThread. Nothing is written to the thread's Port afterwards. On the owning
// goroutine.
func (e *Engine) DetachThread(nodeIndex, slotIndex, index int) {
	n := e.nodes[nodeIndex]
	s := n.slots[slotIndex]
	if s == nil || s.threads[index] == 0 {
		return
	}
	s.process.RemoveThread(index)
	n.threads[s.threads[index]] = thread{}
	s.threads[index] = 0
}

// Attach ties a process to a slot of a node. On the owning goroutine.
func (e *Engine) Attach(nodeIndex, slotIndex int, a *Attachment) error {
	n := e.nodes[nodeIndex]
	if n.slots[slotIndex] != nil {
		return fmt.Errorf("%w: slot %d of node %d is attached already", ErrConfig, slotIndex, nodeIndex)
	}
	if a.Space == nil {
		return fmt.Errorf("%w: slot %d of node %d has no memory", ErrConfig, slotIndex, nodeIndex)
	}
	if a.Bells == nil {
		a.Bells = new(attach.Bells)
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
	e.denyHeld(s)
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
	for i := range s.threads {
		e.DetachThread(nodeIndex, slotIndex, i)
	}
	n.slots[slotIndex] = nil
}
