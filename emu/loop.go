package emu

import (
	"math"
	"slices"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
)

// run is the engine goroutine. It ends when the engine stops, or when a call
// outlasted its lease: then another goroutine runs run already, late is the
// call that it left behind, and everything that the engine owns is its own.
func (e *Engine) run(late *call) {
	e.own()
	if late == nil {
		e.held.Lock()
	} else {
		e.overtaken(late)
		if e.borrowed {
			// It was a borrower that got stuck: the engine goroutine sleeps.
			e.repay()
			return
		}
	}
	p, rested := owner.NewPatience(e.cfg.Spin, e.cfg.SpinMax), false
	for {
		busy, ok := e.pass()
		if !ok {
			return
		}
		if e.stop {
			e.end()
			return
		}
		woke := rested
		rested = false
		if busy {
			p.Busy()
			continue
		}
		now := e.Now()
		// What woke the engine and brought nothing is not worth to look for more.
		asked := e.nudge(now) > 0
		sleep := p.Idle(now, asked, e.yield) || woke && !asked
		if sleep || now-p.Since() >= showAfter {
			e.show(now)
		}
		if sleep {
			e.sleep()
			p.Slept(e.Now() - now)
			rested = true
		}
	}
}

// yield offers the processor to others, and returns for how many ns they had it.
func (e *Engine) yield() int64 {
	start := e.Now()
	owner.Yield()
	e.own()
	return e.Now() - start
}

func (e *Engine) end() {
	for s := range e.attached {
		e.Detach(s.node.index, s.index)
	}
	e.loop.End()
	e.held.Unlock()
}

// pass does once all that there is to do. ok is false if a call lost its lease: the
// caller must touch nothing any more.
//
// Everybody who may have published something is looked at. Then what is urgent is
// done, and where nothing is, a piece of the data; where a process has published
// something meanwhile, the pass ends. So what is urgent waits for one piece of the
// data, and a stream of it leaves one in passWork to the data.
func (e *Engine) pass() (busy, ok bool) {
	ok = true
	e.clock.run(e.Now())
	e.watch()
	// What has begun is done first: its payloads are in the caches.
	busy = e.loop.Look(e.clock.seen, func() bool { return e.urgent.len() >= passWork/2 })
	for _, p := range e.loop.Hot() {
		s := p.Slot
		if s.waits > 0 && s.att.Space.Poll(e.clock.seen, e.goOn) {
			busy = true
		}
	}
	if e.release() {
		busy = true
	}
	for _, n := range e.nodes {
		if n.due <= e.clock.now {
			busy = true
			e.arrive(n)
			e.step(n, &soc.Event{Kind: soc.Tick})
		}
	}
	// What is urgent, the driver first: a page-in that is under way elsewhere while
	// bytes move here is what makes faults cheap.
	for range passWork {
		var c *call
		data := false
		switch {
		case e.loop.Posted():
			e.loop.Take(e.returned)
		case e.vectors && e.deliver():
		case len(e.tasks) > 0:
			c = e.tasks[0]
			e.tasks = slices.Delete(e.tasks, 0, 1)
			if !c.begun {
				c = e.begin(c)
			}
		case e.urgent.some():
			c = e.next(&e.urgent)
		default:
			if c, data = e.data(); !data {
				return busy, true
			}
		}
		if !e.perform(c) {
			return true, false
		}
		if data && e.loop.Rung() {
			return true, true
		}
		busy = true
	}
	c, _ := e.data()
	return true, e.perform(c)
}

// data does one piece of what is not urgent, as next does. done is false if there is none.
func (e *Engine) data() (c *call, done bool) {
	switch {
	case e.arriving.some():
		return e.next(&e.arriving), true
	case e.leaving.some():
		return e.next(&e.leaving), true
	}
	c = e.apart.takeBack(e)
	return c, c != nil
}

// step gives a node an event; what it wants done joins the queue.
func (e *Engine) step(n *node, ev *soc.Event) {
	from := len(e.actions)
	n.soc.Stamp(e.tracer.stamp(e.clock.seen))
	e.actions = n.soc.Step(e.clock.now, ev, e.actions)
	n.due = n.deadline()
	if e.recorder != nil {
		e.recorder.Step(e.clock.now, n.index, ev, e.actions[from:])
	}
	e.refused(n, e.actions[from:])
	e.enqueue(n, from)
}

func (e *Engine) store(n *node, id device.WindowID, off uint32, width int, v uint64) {
	from := len(e.actions)
	n.soc.Stamp(e.tracer.stamp(e.clock.seen))
	e.actions = n.soc.Store(e.clock.now, id, off, width, v, e.actions)
	n.due = n.deadline()
	if e.recorder != nil {
		e.recorder.Store(e.clock.now, n.index, id, off, width, v, e.actions[from:])
	}
	e.refused(n, e.actions[from:])
	e.enqueue(n, from)
}

func (e *Engine) enqueue(n *node, from int) {
	for _, a := range e.actions[from:] {
		e.queueOf(&a).add(item{n, a})
	}
	e.actions = e.actions[:from]
}

// deliver gives the drivers the vectors that wait.
func (e *Engine) deliver() (any bool) {
	e.vectors = false
	for _, n := range e.nodes {
		if n.pending == 0 || n.handler == nil {
			continue
		}
		any = true
		p := n.pending
		n.pending = 0
		for v := 0; v < device.Vectors; v++ {
			if p>>uint(v)&1 != 0 {
				n.handler.Interrupt(v)
			}
		}
	}
	return any
}

// next does the action at the head of the queue, together with those behind it
// that can be joined to it. It returns the call that is to be performed for that, nil
// where there is none.
func (e *Engine) next(q *itemQueue) *call {
	it := &q.items[q.head]
	n, a := it.node, it.action
	switch a.Kind {
	case soc.Walk, soc.Move:
		return e.access(q)
	}
	q.head++
	switch a.Kind {
	case soc.QueueAccess:
		return e.queueAccess(n, a.Queue)
	case soc.Transmit:
		e.transmit(n, a.Frame)
	case soc.Interrupt:
		n.pending |= 1 << a.Vector
		e.vectors = true
	case soc.DescriptorChanged:
		e.publishing()
		if s := n.slots[a.Slot]; s != nil {
			s.att.Pages.SetDone(int(a.Channel), a.Done, a.Status, a.Paused)
			if a.Done != device.DoneOngoing && a.Channel < device.WriteChannels {
				s.att.Pages.Notify()
			}
		}
		e.published(n, &a)
	case soc.WordsWritten:
		if s := n.slots[a.Slot]; s != nil {
			s.att.Pages.Notify()
		}
	case soc.MailArrived:
		if s := n.slots[int(a.Interface-device.MailboxProcess)%device.Slots]; s != nil {
			e.deliverMail(s)
		}
	}
	return nil
}

// processes is the engine as the owner's loop calls it for its processes.
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
		// The firmware will want the descriptor: here is where it is copied.
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

// Fired implements owner.User. Nothing else is watched but the inbox.
func (processes) Fired(int) {}

// declines reports whether a message is a RAPF with the fail bit that is not to be sent.
func (s *slot) declines(m *attach.Message) bool {
	if s.att.Declined == nil || m.N != 1 || m.Mailbox != device.MailboxRequest {
		return false
	}
	r, err := mailbox.DecodeRAPF(m.Words[0])
	return err == nil && r.Fail && s.att.Declined(m.Node, r)
}

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

// sleep waits in the kernel until a process rings, something is posted, or a machine's
// deadline.
func (e *Engine) sleep() {
	e.loop.Doze()
	if !e.worth() {
		now := e.Now()
		timeout := e.loop.Timeout(now)
		if next := e.nudge(now); next > 0 {
			timeout = sooner(timeout, next-now)
		}
		for _, n := range e.nodes {
			if n.due < int64(1)<<62 {
				timeout = sooner(timeout, n.due-e.clock.now)
			}
		}
		timeout = e.tracer.untilShown(timeout)
		e.until = math.MaxInt64
		if timeout >= 0 {
			e.until = e.clock.now + int64(timeout)
		}
		e.held.Unlock()
		e.loop.Wait(timeout)
		e.held.Lock()
		e.own()
		e.clock.slept(e.Now(), e.until)
	}
	e.loop.Rouse(e.clock.seen)
}

// sooner bounds a time-out, of which a negative one never passes, by a time in ns.
func sooner(timeout time.Duration, left int64) time.Duration {
	if d := time.Duration(max(left, 0)); timeout < 0 || d < timeout {
		return d
	}
	return timeout
}

func (e *Engine) worth() bool {
	if e.loop.Posted() || e.loop.Rung() {
		return true
	}
	for _, p := range e.loop.Hot() {
		if s := p.Slot; s.waits > 0 && s.att.Space.Pending() {
			return true
		}
	}
	return false
}

// nudge looks after whoever has been asked and does not answer; it returns when that, or what
// waits for a thread, is to be looked at again, 0 never.
func (e *Engine) nudge(now int64) (next int64) {
	for _, p := range e.loop.Hot() {
		s, n := p.Slot, int64(0)
		if s.waits > 0 {
			n = s.att.Space.Due(now)
		}
		if len(s.held) > 0 {
			if until := s.held[0].since + holdTime + 1; n == 0 || until < n {
				n = until
			}
		}
		if n > 0 && (next == 0 || n < next) {
			next = n
		}
	}
	return next
}
