package emu

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
	"github.com/exanet/pfd/soc"
	"golang.org/x/sys/unix"
)

// loop is the engine goroutine. It ends when the engine stops, or when a call
// outlasted its lease: then another goroutine runs loop already, late is the
// call that it left behind, and everything that the engine owns is its own.
func (e *Engine) loop(late *call) {
	e.own()
	if late == nil {
		e.owner.Lock()
	} else {
		e.overtaken(late)
		if e.borrowed {
			// It was a borrower that got stuck: the engine goroutine sleeps.
			e.repay()
			return
		}
	}
	p, rested := newPatience(e.cfg.Spin, e.cfg.SpinMax), false
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
			p.busy()
			continue
		}
		now := e.Now()
		// What woke the engine and brought nothing is not worth to look for more.
		asked := e.nudge(now) > 0
		sleep := p.idle(now, asked, e.yield) || woke && !asked
		if sleep || now-p.since >= showAfter {
			e.show(now)
		}
		if sleep {
			e.sleep()
			p.slept(e.Now() - now)
			rested = true
		}
	}
}

// yield offers the processor to others, and gives how long they had it, ns.
func (e *Engine) yield() int64 {
	start := e.Now()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	e.own()
	return e.Now() - start
}

func (e *Engine) end() {
	for len(e.live) > 0 {
		e.Detach(e.live[0].node.index, e.live[0].index)
	}
	close(e.done)
	e.owner.Unlock()
}

// pass does once whatever there is to do. ok false: the lease was lost, and the
// caller must touch nothing any more.
//
// Everybody who may have published something is looked at. Then what is urgent is
// done, and where nothing is, a piece of the data; where a process has published
// something meanwhile, the pass ends. So what is urgent waits for one piece of the
// data, and a stream of it leaves one in passWork to the data.
func (e *Engine) pass() (busy, ok bool) {
	ok = true
	e.clock.run(e.Now())
	e.tracer.watch(e.live)
	// In turns: what has begun is done first, and its payloads are in the caches.
	for range e.live {
		if e.urgent.len() >= passWork/2 {
			break
		}
		e.turn = (e.turn + 1) % len(e.live)
		s := e.live[e.turn]
		if e.deaf(s) {
			continue
		}
		if k := s.att.Pages.Kick(); k != s.kick || s.sends {
			busy = e.kick(s, k) || busy
		}
	}
	for _, s := range e.live {
		if s.port != nil && s.port.Pending() && s.port.Poll() {
			busy = true
		}
		if len(s.asked) > 0 && e.answers(s) {
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
		switch {
		case e.inbox.Load():
			e.takeInbox()
		case e.vectors && e.deliver():
		case len(e.tasks) > 0:
			c := e.tasks[0]
			e.tasks = slices.Delete(e.tasks, 0, 1)
			ok = e.dispatch(c)
		case e.urgent.some():
			ok = e.next(&e.urgent)
		default:
			var done bool
			if done, ok = e.data(); !done {
				return busy, true
			}
			if ok && e.rung() {
				return true, true
			}
		}
		if !ok {
			return true, false
		}
		busy = true
	}
	_, ok = e.data()
	return true, ok
}

// rung tells whether some process has published something.
func (e *Engine) rung() bool {
	for _, s := range e.live {
		if s.muted == 0 && (s.sends || s.att.Pages.Kick() != s.kick) {
			return true
		}
	}
	return false
}

// data does one piece of what is not urgent.
func (e *Engine) data() (done, ok bool) {
	switch {
	case e.arriving.some():
		return true, e.next(&e.arriving)
	case e.leaving.some():
		return true, e.next(&e.leaving)
	}
	if c := e.apart.takeBack(e); c != nil {
		return true, e.perform(c)
	}
	return false, true
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
// that can be joined to it.
func (e *Engine) next(q *itemQueue) bool {
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
	return true
}

// kicked takes what a process has published: its doorbell and, the next time,
// its messages. A doorbell is announced by both, and its transfer need not wait
// for the second announcement. It reports whether there was anything.
func (e *Engine) kicked(s *slot) (any bool) {
	p := s.att.Pages
	s.sends = false
	if v := p.TakeDoorbell(); v != 0 {
		if v > device.ChannelsPerSlot {
			v = device.ChannelsPerSlot + 1 // any channel that does not exist: refused and counted
		}
		e.ring(s, int(v-1), soc.DoorbellRung)
		s.sends = true
		return true
	}
	if s.mailWaits {
		e.deliverMail(s)
		any = !s.mailWaits
	}
	var m attach.Message
	iface := device.MailboxProcess + s.index
	for c := 0; c < device.PktzChannels; c++ {
		if !p.TakeSend(c, &m) {
			continue
		}
		any = true
		if s.declines(&m) {
			p.SetPktzStatus(c, device.PktzFree)
			continue
		}
		if m.N > 0 && m.Mailbox == device.MailboxRequest && mailbox.OpcodeOf(m.Words[0]) == mailbox.OpDoorbell {
			// The firmware will want the descriptor: here is where it is copied.
			if d, err := mailbox.DecodeDoorbell(m.Words[0]); err == nil && d.Slot() == s.index {
				e.ring(s, int(d.Channel)%device.ChannelsPerSlot, soc.DescriptorCopied)
			}
		}
		e.step(s.node, &soc.Event{
			Kind: soc.MessageSent, Interface: iface, Channel: c,
			Destination: packetizer.Destination(m.Node, m.Mailbox, m.Generation), Words: m.Words, N: m.N,
		})
		p.SetPktzStatus(c, uint64(s.node.soc.PacketizerStatus(iface, c)))
	}
	return any
}

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

// post has f run on the engine goroutine. Any goroutine.
func (e *Engine) post(f func()) {
	e.mu.Lock()
	e.posts = append(e.posts, f)
	e.inbox.Store(true)
	e.wakeLocked()
	e.mu.Unlock()
}

// finish gives a call back to the engine goroutine. Any goroutine.
func (e *Engine) finish(c *call) {
	e.mu.Lock()
	e.finished = append(e.finished, c)
	e.inbox.Store(true)
	e.wakeLocked()
	e.mu.Unlock()
}

func (e *Engine) wakeLocked() {
	if e.asleep.Load() && e.event >= 0 {
		one := [8]byte{1}
		// An eventfd that is full wakes as well; one that was not written does not.
		for {
			if _, err := unix.Write(e.event, one[:]); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}

func (e *Engine) takeInbox() {
	e.mu.Lock()
	posts, finished := e.posts, e.finished
	e.posts, e.finished = e.spare[:0], e.spareFin[:0]
	e.inbox.Store(false)
	e.mu.Unlock()
	for i, c := range finished {
		finished[i] = nil
		e.complete(c)
	}
	for i, f := range posts {
		posts[i] = nil
		f()
	}
	e.spare, e.spareFin = posts, finished
}

// sleep waits in the kernel until a process rings, something is posted, or a
// machine's deadline. The flags are set first and looked behind once more: either
// we see what was published, or its publisher sees that we sleep.
func (e *Engine) sleep() {
	e.asleep.Store(true)
	for _, s := range e.live {
		s.att.Pages.SetAsleep(true)
		if s.port != nil {
			s.port.SetAsleep(true)
		}
	}
	if !e.worth() {
		timeout := time.Duration(-1)
		now := e.Now()
		if next := e.nudge(now); next > 0 {
			timeout = time.Duration(max(next-now, 0))
		}
		for _, n := range e.nodes {
			if d := n.due; d < int64(1)<<62 {
				if left := time.Duration(max(d-e.clock.now, 0)); timeout < 0 || left < timeout {
					timeout = left
				}
			}
		}
		for _, s := range e.live {
			if left := time.Duration(max(s.muted-now, 0)); s.muted != 0 && (timeout < 0 || left < timeout) {
				timeout = left
			}
		}
		timeout = e.tracer.untilShown(timeout)
		e.until = math.MaxInt64
		if timeout >= 0 {
			e.until = e.clock.now + int64(timeout)
		}
		e.owner.Unlock()
		e.wait(timeout)
		e.owner.Lock()
		e.own()
		e.clock.slept(e.Now(), e.until)
	}
	for _, s := range e.live {
		s.att.Pages.SetAsleep(false)
		if s.port != nil {
			s.port.SetAsleep(false)
		}
	}
	e.asleep.Store(false)
}

func (e *Engine) worth() bool {
	if e.inbox.Load() {
		return true
	}
	if e.rung() {
		return true
	}
	for _, s := range e.live {
		if s.port != nil && s.port.Pending() {
			return true
		}
		if slices.ContainsFunc(s.asked, (*call).isAnswered) {
			return true
		}
	}
	return false
}
