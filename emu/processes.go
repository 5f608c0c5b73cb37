package emu

import (
	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
)

// processes makes the engine an owner.User.
type processes struct{ *Engine }

// Ring implements owner.User.
func (e processes) Ring(p *owner.Process[*slot], channel int) {
	e.ring(p.Slot, channel, soc.DoorbellRung)
}

// Send implements owner.User.
func (e processes) Send(p *owner.Process[*slot], channel int, m *attach.Message) uint64 {
	s := p.Slot
	if s.declines(m) {
		return device.PktzFree
	}
	if m.N > 0 && m.Mailbox == device.MailboxRequest && mailbox.OpcodeOf(m.Words[0]) == mailbox.OpDoorbell {
		// The firmware is going to read the descriptor: copy it now.
		if d, err := mailbox.DecodeDoorbell(m.Words[0]); err == nil && d.Slot() == s.index {
			e.ring(s, int(d.Channel)%device.ChannelsPerSlot, soc.DescriptorCopied)
		}
	}
	iface := device.MailboxProcess + s.index
	e.step(s.node, &soc.Event{
		Kind: soc.MessageSent, Interface: iface, Channel: channel,
		Destination: packetizer.Destination(m.Node, m.Mailbox, m.Generation), Words: m.Words, N: m.N,
	})
	return uint64(s.node.soc.PacketizerStatus(iface, channel))
}

// Room implements owner.User.
func (e processes) Room(p *owner.Process[*slot]) bool { return e.deliverMail(p.Slot) }

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
	e.rings(s, ch)
	ev := soc.Event{Kind: kind, Slot: s.index, Channel: ch}
	if ch < device.ChannelsPerSlot {
		var d device.Descriptor
		s.att.Pages.Descriptor(ch, &d)
		ev.Words = d.Words()
	}
	e.step(s.node, &ev)
}

// deliverMail moves messages from the node's mailbox to the process's ring while there is room. The
// rest follows when the process has read some. It reports whether it has moved any.
func (e *Engine) deliverMail(s *slot) bool {
	return s.process.Deliver(func(m *attach.Mail) bool {
		box := device.MailboxProcess + s.index
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
}
