package mediate

import (
	"time"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// A message for a process raises no vector (spec/hardware.md 3, window mbox), so
// its mailbox is looked at while answers may come: from a read request on, first
// after mailPause, then each time after twice as long, mailLast at most, for
// mailTime, and again when a process whose ring was full has made room. The library
// asks again for a read that is open at least every 320 ms (ours).
const (
	mailPause = 50 * time.Microsecond
	mailLast  = 2 * time.Millisecond
	mailTime  = time.Second
)

// mail is the way from a slot's mailbox to its process.
type mail struct {
	asked bool  // a read was asked for, or the ring has room again
	until int64 // looked at until then, of Now; 0: not
	next  int64 // looked at then
	pause int64 // ns
}

// deliver looks into the mailbox if it is time, gives the process what is there,
// and tells whether there was anything.
func (s *slot) deliver(now int64) (any bool) {
	m := &s.mail
	if m.asked {
		m.asked = false
		m.until, m.pause = now+int64(mailTime), int64(mailPause)
		m.next = now + m.pause
	}
	if m.until == 0 || now < m.next {
		return false
	}
	m.pause = min(2*m.pause, int64(mailLast))
	m.next = now + m.pause
	any = s.take()
	if now >= m.until {
		m.until = 0
	}
	return any
}

// take moves messages from the mailbox to the process as far as its ring has room.
func (s *slot) take() (any bool) {
	box := mailbox.NewBox(&s.node.windows[device.MBOX], device.MailboxProcess+s.index)
	return s.process.Deliver(func(m *attach.Mail) bool {
		if n, _, err := box.Status(); err != nil || n == 0 {
			return false // a device that is gone is posted
		}
		src, err := box.Receive(&m.Words)
		m.Source = src.Encode()
		return err == nil && src.Words != 0
	})
}
