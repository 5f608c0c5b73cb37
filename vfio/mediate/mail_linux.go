package mediate

import (
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/queues"
	"github.com/exanet/pfd/internal/owner"
	"github.com/exanet/pfd/mailbox"
)

// With queues in memory messages for a process come with their events (queues.Messages). Those that
// its ring has no room for wait here. Once they are more than a mailbox takes, the device is told to
// keep further ones; a ring's worth may be on its way. Defined by this project.
const mostCame = device.MailboxDepth + 1 + queues.Entries

// Without, a message for a process raises no vector (spec/hardware.md 3, window mbox), so its mailbox is
// polled while answers may arrive. Polling starts with a read request, or with a message between
// processes, at both of them: first after mailPause,
// then at intervals that double up to mailLast, for mailTime. It starts again when a process
// whose ring was full has made room. The library repeats an open read request at least every 320
// ms. Values below are defined by this project.
const (
	mailPause = 50 * time.Microsecond
	mailLast  = 2 * time.Millisecond
	mailTime  = time.Second
)

// mail is the state of the mailbox of a process, or of a thread of it.
type mail struct {
	slot   *slot
	thread int // index of the thread, or owner.Own
	box    int

	came  []attach.Mail // with events, oldest first
	held  bool          // the device keeps further ones in the mailbox
	long  bool          // the head of the mailbox is one that no event takes
	due   bool          // a read was requested, or the ring has room again
	until int64         // when polling ends, of Now; 0: not polling
	next  int64         // time of the next poll
	pause int64         // ns
}

// newSlot returns the slot of a process.
func newSlot(n *node, index int, a *Attachment) *slot {
	s := &slot{node: n, index: index, att: a}
	s.mail = mail{slot: s, thread: owner.Own, box: device.MailboxProcess + index}
	return s
}

// mails iterates over the mailboxes of a process and its threads.
func (s *slot) mails(yield func(*mail) bool) {
	if !yield(&s.mail) || s.threads == nil {
		return
	}
	for _, m := range s.threads {
		if m != nil && !yield(m) {
			return
		}
	}
}

// polls reports whether any of them is to be polled.
func (s *slot) polls() bool {
	for m := range s.mails {
		if m.due || m.until != 0 {
			return true
		}
	}
	return false
}

// mailOf returns the mailbox of a thread, or owner.Own.
func (s *slot) mailOf(thread int) *mail {
	if thread == owner.Own {
		return &s.mail
	}
	return s.threads[thread]
}

// poll polls the mailbox if it is time, moves its messages to the process, and reports whether there
// were any.
func (m *mail) poll(now int64) (any bool) {
	if !m.due && m.until == 0 {
		return false
	}
	if m.due {
		m.due = false
		next := now + int64(mailPause)
		if m.until != 0 { // messages that come often must not postpone the poll
			next = min(next, m.next)
		}
		m.until, m.pause, m.next = now+int64(mailTime), int64(mailPause), next
	}
	if m.until == 0 || now < m.next {
		return false
	}
	m.pause = min(2*m.pause, int64(mailLast))
	m.next = now + m.pause
	if any = m.take(); any {
		m.pause, m.next = int64(mailPause), now+int64(mailPause) // more may come
	}
	if now >= m.until {
		m.until = 0
	}
	return any
}

// take moves messages to the process as far as its ring has room: those that have come, then those
// in the mailbox. It reports whether there were any.
func (m *mail) take() (any bool) {
	s := m.slot
	box := mailbox.NewBox(s.node.windows[device.MBOX], m.box)
	r := s.events()
	any = s.process.Deliver(m.thread, func(out *attach.Mail) bool {
		if len(m.came) > 0 {
			*out = m.came[0]
			m.came = m.came[:copy(m.came, m.came[1:])]
			return true
		}
		if r != nil {
			// One for each event: before the next such message others may have gone into events.
			long := m.long
			if m.long = false; !long {
				return false
			}
			if src, err := box.Source(); err != nil || src.Words <= device.EntryWords {
				return false
			}
		} else if n, _, err := box.Status(); err != nil || n == 0 {
			return false // a device that is gone is posted
		}
		out.Words = [device.PktzMaxWords]uint64{} // of an earlier message
		src, err := box.Receive(&out.Words)
		out.Source = src.Encode()
		return err == nil && src.Words != 0
	})
	if any && m.thread == owner.Own {
		attach.WakeAll(s.att.Bells.Mail())
	}
	if m.held && len(m.came) == 0 {
		if m.held = false; r != nil {
			r.Hold(m.box, false)
		}
	}
	return any
}

// events returns the queues with whose events messages come, or nil.
func (s *slot) events() *rings {
	if l := s.node.link.Load(); l != nil && l.rings != nil && l.rings.Messages() {
		return l.rings
	}
	return nil
}
