package emu

import (
	"errors"
	"math"
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/wire"
	"golang.org/x/sys/unix"
)

// loop is the engine goroutine. It ends when the engine stops, or when a call
// outlasted its lease: then another goroutine runs loop already, late is the
// call that it left behind, and everything that the engine owns is its own.
func (e *Engine) loop(late *call) {
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
	e.calls = 0
	p := newPatience(e.cfg.Spin, e.cfg.SpinMax)
	for {
		busy, ok := e.pass()
		if !ok {
			return
		}
		if e.stop {
			e.end()
			return
		}
		if busy {
			p.busy()
			continue
		}
		if now := e.Now(); p.idle(now, e.yield) {
			e.sleep(now)
			p.slept(e.Now() - now)
		}
	}
}

// yield offers the processor to others, and gives how long they had it, ns.
func (e *Engine) yield() int64 {
	start := e.Now()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
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
func (e *Engine) pass() (busy, ok bool) {
	e.clock = e.Now()
	if e.inbox.Load() {
		busy = true
		e.takeInbox()
	}
	// In turns: what has begun is done first, and its payloads are in the caches.
	for range e.live {
		if len(e.quick.items)-e.quick.head >= quickFull {
			break
		}
		e.turn = (e.turn + 1) % len(e.live)
		s := e.live[e.turn]
		if k := s.att.Pages.Kick(); k != s.kick || s.sends {
			busy = true
			s.kick = k
			e.kicked(s)
		}
	}
	for _, n := range e.nodes {
		if n.due <= e.clock {
			busy = true
			e.step(n, &soc.Event{Kind: soc.Tick})
		}
	}
	// The driver comes before the data: a page-in that is under way elsewhere
	// while bytes move here is what makes faults cheap. And only so much at a
	// time: a stream of data must not keep other processes' doorbells waiting.
	for range passWork {
		switch {
		case e.inbox.Load():
			e.takeInbox()
		case e.vectors && e.deliver():
		case len(e.tasks) > 0:
			c := e.tasks[0]
			e.tasks = e.tasks[:copy(e.tasks, e.tasks[1:])]
			if !e.dispatch(c) {
				return busy, false
			}
		case e.quick.some() && (e.row < quickRow || !e.arriving.some() && !e.leaving.some()):
			e.row++
			if !e.next(&e.quick) {
				return busy, false
			}
		case e.arriving.some() || e.leaving.some():
			e.row = 0
			q := &e.arriving
			if !q.some() {
				q = &e.leaving
			}
			if !e.next(q) {
				return busy, false
			}
			if e.kicks() {
				// What it is may be of the high class.
				return true, true
			}
		default:
			e.quick.reset()
			e.arriving.reset()
			e.leaving.reset()
			c := e.steal()
			if c == nil {
				return busy, true
			}
			if !e.perform(c) {
				return busy, false
			}
		}
		busy = true
	}
	return busy, true
}

// passWork is how many pieces of work a pass does at most before it looks at the
// processes and the clock again (ours; some 100 us of data).
const passWork = 64

// step gives a node an event; what it wants done joins the queue.
func (e *Engine) step(n *node, ev *soc.Event) {
	from := len(e.actions)
	e.actions = n.soc.Step(e.clock, ev, e.actions)
	n.due = n.soc.Deadline()
	if e.recorder != nil {
		e.recorder.Step(e.clock, n.index, ev, e.actions[from:])
	}
	e.enqueue(n, from)
}

func (e *Engine) store(n *node, id device.WindowID, off uint32, width int, v uint64) {
	from := len(e.actions)
	e.actions = n.soc.Store(e.clock, id, off, width, v, e.actions)
	n.due = n.soc.Deadline()
	if e.recorder != nil {
		e.recorder.Store(e.clock, n.index, id, off, width, v, e.actions[from:])
	}
	e.enqueue(n, from)
}

func (e *Engine) enqueue(n *node, from int) {
	e.quick.compact()
	e.arriving.compact()
	e.leaving.compact()
	for _, a := range e.actions[from:] {
		q := e.queueOf(&a)
		q.items = append(q.items, item{n, a})
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
	case soc.Transmit:
		f := a.Frame
		if e.cfg.Link != nil && f.Kind == wire.Data {
			f = e.cfg.Link(f)
		}
		if int(f.DstNode) < len(e.nodes) {
			e.step(e.nodes[f.DstNode], &soc.Event{Kind: soc.FrameArrived, Frame: f})
		} else {
			e.pool.Put(f)
		}
	case soc.Interrupt:
		n.pending |= 1 << a.Vector
		e.vectors = true
	case soc.DescriptorChanged:
		if s := n.slots[a.Slot]; s != nil {
			s.att.Pages.SetDone(int(a.Channel), a.Done, a.Status, a.Paused)
			if a.Done != device.DoneOngoing && a.Channel < device.WriteChannels {
				s.att.Pages.Notify()
			}
		}
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
// for the second announcement.
func (e *Engine) kicked(s *slot) {
	p := s.att.Pages
	s.sends = false
	if v := p.TakeDoorbell(); v != 0 {
		if v > device.ChannelsPerSlot {
			v = device.ChannelsPerSlot + 1 // any channel that does not exist: refused and counted
		}
		e.ring(s, int(v-1), soc.DoorbellRung)
		s.sends = true
		return
	}
	if s.mailWaits {
		e.deliverMail(s)
	}
	var m attach.Message
	iface := device.MailboxProcess + s.index
	for c := 0; c < device.PktzChannels; c++ {
		if !p.TakeSend(c, &m) {
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
			Destination: uint64(m.Node) | uint64(m.Mailbox)<<24, Words: m.Words, N: m.N,
		})
		p.SetPktzStatus(c, uint64(s.node.soc.PacketizerStatus(iface, c)))
	}
}

func (e *Engine) ring(s *slot, ch int, kind soc.EventKind) {
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
func (e *Engine) sleep(now int64) {
	e.asleep.Store(true)
	for _, s := range e.live {
		s.att.Pages.SetAsleep(true)
	}
	if !e.worth() {
		timeout := time.Duration(-1)
		for _, n := range e.nodes {
			if d := n.due; d < int64(1)<<62 {
				if left := time.Duration(max(d-now, 0)); timeout < 0 || left < timeout {
					timeout = left
				}
			}
		}
		e.until = math.MaxInt64
		if timeout >= 0 {
			e.until = now + int64(timeout)
		}
		e.owner.Unlock()
		e.wait(timeout)
		e.owner.Lock()
		e.calls = 0
	}
	for _, s := range e.live {
		s.att.Pages.SetAsleep(false)
	}
	e.asleep.Store(false)
}

func (e *Engine) worth() bool {
	if e.inbox.Load() {
		return true
	}
	for _, s := range e.live {
		if s.att.Pages.Kick() != s.kick || s.sends {
			return true
		}
	}
	return false
}
