package mediate

import (
	"math/bits"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// run is the owner.
func (m *Machine) run() {
	p := owner.NewPatience(m.cfg.Spin, m.cfg.Spin)
	yield := func() int64 {
		began := m.Now()
		owner.Yield()
		return m.Now() - began
	}
	for !m.stop {
		if m.pass() {
			p.Busy()
			m.nap = shortNap
			continue
		}
		if m.over && !m.underWay() {
			p.AtLeast(againTime)
		}
		m.over = false
		now := m.Now()
		if p.Idle(now, false, yield) {
			m.sleep()
			p.Slept(m.Now() - now)
		} else {
			m.loop.Poll(now)
		}
	}
}

// underWay reports whether any transfer is in progress.
func (m *Machine) underWay() bool {
	for _, n := range m.nodes {
		for _, s := range n.slots {
			if s != nil && s.busy != 0 {
				return true
			}
		}
	}
	return false
}

// pass does all pending work once, except for vectors, which the loop finds (Poll, Rouse).
func (m *Machine) pass() (busy bool) {
	if m.loop.Posted() {
		busy = true
		m.loop.Take(work.Done)
	}
	for _, n := range m.nodes {
		l := n.link.Load()
		if l == nil {
			continue
		}
		if l.polled && n.pollVectors(l) {
			busy = true
		}
		if n.written {
			n.wakeTargets(l)
		}
	}
	now := m.Now()
	busy = m.loop.Look(now, never) || busy
	for _, p := range m.loop.Hot() {
		s := p.Slot
		if l := s.node.link.Load(); l != nil && s.busy != 0 && s.collect(l) {
			busy = true
		}
		for m := range s.mails {
			busy = m.poll(now) || busy
		}
	}
	for len(m.calls) > 0 {
		busy = true
		c := m.calls[0]
		m.calls = m.calls[:copy(m.calls, m.calls[1:])]
		c.Run()
		c.Done()
	}
	return busy
}

// never always reports false.
func never() bool { return false }

// processes is the owner.User of a machine, for its processes.
type processes struct{ *Machine }

// Fired implements owner.User. If fd is the eventfd of a vector, the vector has been raised.
func (m processes) Fired(fd int) {
	for _, n := range m.nodes {
		for v, e := range n.vectors {
			if e == fd {
				n.interrupt(v)
			}
		}
	}
}

// Ring implements owner.User.
func (processes) Ring(p *owner.Process[*slot], channel int) {
	if l := p.Slot.node.link.Load(); l != nil {
		p.Slot.ring(l, uint64(channel))
	}
}

// Send implements owner.User.
func (processes) Send(p *owner.Process[*slot], thread, channel int, m *attach.Message) uint64 {
	l := p.Slot.node.link.Load()
	switch {
	case l == nil || m.N == 0: // the device is gone
		return device.PktzRefused
	case thread != owner.Own:
		return p.Slot.post(l, p.Slot.threads[thread], channel, m)
	}
	return p.Slot.send(l, channel, m)
}

// Room implements owner.User: the mailbox is read when its time has come.
func (processes) Room(p *owner.Process[*slot], thread int) bool {
	m := p.Slot.mailOf(thread)
	if p.Slot.events() != nil {
		return m.take()
	}
	m.due = true
	return true
}

// Answers implements owner.User: answers come as messages.
func (processes) Answers(*owner.Process[*slot]) bool { return false }

// Busy implements owner.User.
func (processes) Busy(p *owner.Process[*slot]) bool {
	s := p.Slot
	return s.busy != 0 || s.polls()
}

// Mutes implements owner.User.
func (processes) Mutes(*owner.Process[*slot]) {}

// interrupt takes a vector that the device has raised.
func (n *node) interrupt(v int) {
	if v == device.VectorDone {
		n.raised, n.written = true, true
		return
	}
	n.pending |= 1 << v
	n.deliver()
}

// deliver passes the pending vectors to the driver if it waits for one. With queues, reading their
// events may also have posted a delivery (rings.wake), which then finds nothing more.
func (n *node) deliver() {
	if l := n.link.Load(); l != nil && l.rings != nil && l.rings.On() {
		for v := 0; n.pending != 0; v++ {
			if n.pending>>v&1 != 0 {
				n.pending &^= 1 << v
				l.rings.Vector(v)
			}
		}
		l.rings.deliver()
		return
	}
	for v := 0; n.handler != nil && n.pending != 0; v++ {
		if n.pending>>v&1 != 0 {
			n.pending &^= 1 << v
			n.handler.Interrupt(v)
		}
	}
}

// sleep waits in the kernel until a process kicks, a function is posted, or a vector is raised.
func (m *Machine) sleep() {
	m.yield.Sleep()
	m.loop.Doze()
	if !m.worth() {
		timeout := m.loop.Timeout(m.Now())
		for _, p := range m.loop.Hot() {
			switch s := p.Slot; {
			case s.polls():
				timeout = mailLast
			case s.busy != 0 && (timeout < 0 || timeout > watchPause):
				timeout = watchPause
			}
		}
		m.rest(timeout)
	}
	m.loop.Rouse(m.Now())
}

func (m *Machine) worth() bool {
	if m.loop.Posted() || m.loop.Rung() || len(m.calls) > 0 {
		return true
	}
	for _, n := range m.nodes {
		l := n.link.Load()
		if l == nil {
			continue
		}
		if n.raised {
			// The cause of vector 3 is an event, not a level: it must be cleared, and the device
			// must have received that, before the last check of the descriptors. A later
			// completion raises the vector again.
			n.raised = false
			if l.fn.Write(int(device.PL), device.PLIRQStatus, 4, 1<<device.VectorDone) != nil {
				continue // the device is gone, which is posted
			}
			n.wakeTargets(l)
		}
	}
	for _, p := range m.loop.Hot() {
		s := p.Slot
		if l := s.node.link.Load(); l != nil && s.busy != 0 && s.collect(l) {
			return true
		}
	}
	return false
}

// ring forwards a doorbell. A transfer that a word and a message announce is rung once; a channel
// in use is rung only to abort.
func (s *slot) ring(l *link, channel uint64) {
	doorbell := uint64(device.BTCMDoorbells + device.PageSize*s.index)
	if channel >= device.WriteChannels {
		// The channel is not the process's: the device refuses and counts the doorbell.
		_ = l.fn.Post(int(device.BTCM), doorbell, 8, min(channel, device.ChannelsPerSlot)+1)
		return
	}
	ch := int(channel)
	bit := uint64(1) << ch
	if s.busy&bit != 0 {
		s.collect(l)
	}
	var d device.Descriptor
	s.att.Pages.Descriptor(ch, &d)
	switch {
	case s.busy&bit == 0 && d.Done != device.DoneInitialized:
		return // announced twice
	case s.busy&bit == 0:
		words := d.Words()
		l.btcm.put(s.index, ch, &words)
		s.busy |= bit
		s.seen[ch] = 0
		s.rung[ch] = rung{s.node.m.Now(), d.Size, device.ClassOf(d.Size, d.Urgent)}
		l.shadow.Used(s.index, d.Src, uint64(d.Size))
	case d.Abort:
		o := at(s.index, ch) + device.DescReserved0
		v, ok := l.btcm.load(o, 8)
		if !ok {
			return
		}
		l.btcm.store64(o, v|device.DescAbort)
	default:
		return
	}
	_ = l.fn.Post(int(device.BTCM), doorbell, 8, uint64(ch)+1) // a device that is gone is posted
}

// send forwards a message and returns its status.
func (s *slot) send(l *link, channel int, msg *attach.Message) uint64 {
	if msg.Mailbox == device.MailboxRequest && mailbox.OpcodeOf(msg.Words[0]) == mailbox.OpDoorbell {
		if d, err := mailbox.DecodeDoorbell(msg.Words[0]); err == nil && d.Slot() == s.index {
			s.ring(l, uint64(d.Channel)%device.ChannelsPerSlot)
			return device.PktzFree
		}
	}
	if msg.Mailbox == device.MailboxRequest && msg.N == 1 && s.entersFirst(l, channel, msg) {
		return device.PktzFree
	}
	return s.post(l, &s.mail, channel, msg)
}

// post makes the packetizer of a process, or of a thread, send a message.
func (s *slot) post(l *link, from *mail, channel int, msg *attach.Message) uint64 {
	r := s.events()
	if r != nil && (from.thread != owner.Own || msg.Mailbox >= device.MailboxProcess && msg.Number != 0) &&
		r.SendMessage(uint8(from.box), uint8(channel), packetizer.Destination(msg.Node, msg.Mailbox, msg.Generation), msg.Number, msg.Words[:msg.N]) {
		return device.PktzFree // a refusal comes as a message, or an event
	}
	page := uint64(from.box)*device.PageSize + uint64(channel)*device.PktzChannelStride
	post := func(off, v uint64) bool { return l.fn.Post(int(device.PKTZ), page+off, 8, v) == nil }
	ok := post(device.PktzDestination, packetizer.Destination(msg.Node, msg.Mailbox, msg.Generation))
	for i, w := range msg.Words[:msg.N] {
		ok = ok && post(device.PktzPayload+8*uint64(i), w)
	}
	if !ok || !post(device.PktzSend, packetizer.Send(msg.N, msg.Number)) {
		return device.PktzRefused
	}
	v, err := l.fn.Read(int(device.PKTZ), page+device.PktzStatus, 8)
	if err != nil {
		return device.PktzRefused
	}
	if v != device.PktzRefused && r == nil && (msg.Mailbox == device.MailboxRead || msg.Mailbox == device.MailboxGSAS || msg.Mailbox >= device.MailboxProcess) {
		from.due = true // an answer may come
		if at := int(msg.Node); msg.Mailbox >= device.MailboxProcess && l.rings == nil && at < len(s.node.m.nodes) {
			s.node.m.nodes[at].mailCame(int(msg.Mailbox)) // no vector and no event says so
		}
	}
	return v
}

// collect copies what the firmware has written into a process's descriptors to the process. It
// reports whether there was anything.
func (s *slot) collect(l *link) (any bool) {
	notify := false
	for left := s.busy; left != 0; left &= left - 1 {
		ch := bits.TrailingZeros64(left)
		done, status, paused, ok := l.btcm.state(s.index, ch)
		if !ok {
			return any
		}
		now := uint64(done)<<32 | uint64(status)<<8 | uint64(paused)
		if now == s.seen[ch] {
			continue
		}
		any = true
		s.seen[ch] = now
		switch done {
		case device.DoneCompleted, device.DoneFailed:
			s.busy &^= 1 << ch
			r := &s.rung[ch]
			s.node.tally.Over(s.index, tally.Write, r.class, status, r.size, s.node.m.Now()-r.at)
			notify = true
		case device.DoneOngoing:
		default:
			continue // not started yet
		}
		s.att.Pages.SetDone(ch, done, status, paused)
	}
	if notify {
		s.node.m.over = true
		s.att.Pages.Notify()
		attach.WakeAll(s.att.Bells.Mail())
	}
	return any
}
