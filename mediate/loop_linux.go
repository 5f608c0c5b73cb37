package mediate

import (
	"errors"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/tally"
	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/packetizer"
)

// loop is the owner.
func (m *Machine) loop() {
	idleSince, look := int64(-1), time.Duration(0)
	for !m.stop {
		if m.pass() {
			idleSince = -1
			m.nap = shortNap
			continue
		}
		now := m.Now()
		if idleSince < 0 {
			idleSince, look = now, m.cfg.Spin
			if m.over && !m.underWay() {
				look = max(look, againTime)
			}
			m.over = false
		}
		if now-idleSince >= int64(look) {
			m.sleep()
		} else {
			m.poll(0)
		}
	}
}

// underWay tells whether any transfer is.
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

// pass does once whatever there is to do, vectors excepted, which poll finds.
func (m *Machine) pass() (busy bool) {
	if m.inbox.Load() {
		busy = true
		m.takeInbox()
	}
	for _, n := range m.nodes {
		l := n.link.Load()
		if l == nil {
			continue
		}
		if l.polled && n.look(l) {
			busy = true
		}
		if n.written {
			n.wakeTargets(l)
		}
		for _, s := range n.slots {
			if s == nil {
				continue
			}
			if k := s.att.Pages.Kick(); k != s.kick {
				busy = true
				s.kick = k
				s.kicked(l)
			}
			if s.busy != 0 && s.collect(l) {
				busy = true
			}
			if (s.mail.asked || s.mail.until != 0) && s.deliver(m.Now()) {
				busy = true
			}
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

// poll takes the vectors that came, waiting up to timeout for anything; negative:
// for ever.
func (m *Machine) poll(timeout time.Duration) {
	var events [16]unix.EpollEvent
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	n, err := unix.EpollWait(m.epoll, events[:], ms)
	m.asleep.Store(false) // what vectors post need wake nobody
	if err != nil {
		return // EINTR: it comes again
	}
	for _, ev := range events[:n] {
		m.vector(int(ev.Fd))
	}
}

// vector delivers a vector, if fd is one's eventfd.
func (m *Machine) vector(fd int) {
	for _, n := range m.nodes {
		for v, e := range n.vectors {
			if e == fd {
				n.came(v)
			}
		}
	}
}

// came takes a vector.
func (n *node) came(v int) {
	if v == device.VectorDone {
		n.raised, n.written = true, true
		return
	}
	n.pending |= 1 << v
	n.deliver()
}

// deliver gives the driver the vectors that came; they wait for one.
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

// sleep waits in the kernel until a process kicks, something is posted, or a
// vector comes. The flags are set first and looked behind once more: either we
// see what was published, or its publisher sees that we sleep.
func (m *Machine) sleep() {
	m.yield.Sleep()
	m.asleep.Store(true)
	for _, n := range m.nodes {
		for _, s := range n.slots {
			if s != nil {
				s.att.Pages.SetAsleep(true)
			}
		}
	}
	if !m.worth() {
		timeout := time.Duration(-1)
		for _, n := range m.nodes {
			for _, s := range n.slots {
				switch {
				case s == nil:
				case s.mail.asked || s.mail.until != 0:
					timeout = mailLast
				case s.busy != 0 && timeout < 0:
					timeout = watchPause
				}
			}
		}
		m.rest(timeout)
	}
	for _, n := range m.nodes {
		for _, s := range n.slots {
			if s != nil {
				s.att.Pages.SetAsleep(false)
			}
		}
	}
	m.asleep.Store(false)
}

func (m *Machine) worth() bool {
	if m.inbox.Load() || len(m.calls) > 0 {
		return true
	}
	for _, n := range m.nodes {
		l := n.link.Load()
		if l == nil {
			continue
		}
		if n.raised {
			// The cause of vector 3 is an event, not a level: it must be cleared,
			// and the device have taken that, before the descriptors are looked at
			// for the last time. What is done later raises the vector again.
			n.raised = false
			if l.fn.Write(int(device.PL), device.PLIRQStatus, 4, 1<<device.VectorDone) != nil {
				continue // the device is gone, which is posted
			}
			n.wakeTargets(l)
		}
		for _, s := range n.slots {
			if s == nil {
				continue
			}
			if s.att.Pages.Kick() != s.kick || s.busy != 0 && s.collect(l) {
				return true
			}
		}
	}
	return false
}

// kicked takes what a process has published: its doorbell and its messages.
func (s *slot) kicked(l *link) {
	p := s.att.Pages
	if v := p.TakeDoorbell(); v != 0 {
		s.ring(l, v-1)
	}
	s.mail.asked = s.mail.asked || s.mail.holds
	var msg attach.Message
	for c := 0; c < device.PktzChannels; c++ {
		if !p.TakeSend(c, &msg) {
			continue
		}
		p.SetPktzStatus(c, s.send(l, c, &msg))
	}
}

// ring carries a doorbell over. A transfer that is announced twice, by the word
// and by a message, is rung once; a channel that runs is rung for its abort only.
func (s *slot) ring(l *link, channel uint64) {
	doorbell := uint64(device.BTCMDoorbells + device.PageSize*s.index)
	if channel >= device.WriteChannels {
		// Not the process's: the device refuses and counts it.
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

// send carries a message over and gives its status.
func (s *slot) send(l *link, channel int, msg *attach.Message) uint64 {
	if msg.N == 0 {
		return device.PktzRefused
	}
	if msg.Mailbox == device.MailboxRequest && mailbox.OpcodeOf(msg.Words[0]) == mailbox.OpDoorbell {
		if d, err := mailbox.DecodeDoorbell(msg.Words[0]); err == nil && d.Slot() == s.index {
			s.ring(l, uint64(d.Channel)%device.ChannelsPerSlot)
			return device.PktzFree
		}
	}
	if msg.Mailbox == device.MailboxRequest && msg.N == 1 && s.entersFirst(l, channel, msg) {
		return device.PktzFree
	}
	return s.post(l, channel, msg)
}

// post has the process's own packetizer send a message.
func (s *slot) post(l *link, channel int, msg *attach.Message) uint64 {
	page := uint64(device.MailboxProcess+s.index)*device.PageSize + uint64(channel)*device.PktzChannelStride
	post := func(off, v uint64) bool { return l.fn.Post(int(device.PKTZ), page+off, 8, v) == nil }
	ok := post(device.PktzDestination, packetizer.Destination(msg.Node, msg.Mailbox, msg.Generation))
	for i, w := range msg.Words[:msg.N] {
		ok = ok && post(device.PktzPayload+8*uint64(i), w)
	}
	if !ok || !post(device.PktzSend, uint64(msg.N)) {
		return device.PktzRefused
	}
	v, err := l.fn.Read(int(device.PKTZ), page+device.PktzStatus, 8)
	if err != nil {
		return device.PktzRefused
	}
	if v != device.PktzRefused && msg.Mailbox == device.MailboxRead {
		s.mail.asked = true
	}
	return v
}

// collect tells the process what the firmware has written into its descriptors,
// and whether there was anything.
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
			s.node.ended.Over(s.index, tally.Write, r.class, status, r.size, s.node.m.Now()-r.at)
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
	}
	return any
}

// post has f run on the owner. Any goroutine.
func (m *Machine) post(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.posts = append(m.posts, f)
	m.inbox.Store(true)
	if m.asleep.Load() && m.event >= 0 {
		one := [8]byte{1}
		// An eventfd that is full wakes as well; one that was not written does not.
		for {
			if _, err := unix.Write(m.event, one[:]); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
}

func (m *Machine) takeInbox() {
	m.mu.Lock()
	posts := m.posts
	m.posts = m.spare[:0]
	m.inbox.Store(false)
	m.mu.Unlock()
	for i, f := range posts {
		posts[i] = nil
		f()
	}
	m.spare = posts
}
