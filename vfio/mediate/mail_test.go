package mediate

import (
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/internal/owner"
)

// TestMailboxRingThatStaysFull: the mailbox of a process that reads none of its messages is
// polled for a while and not for ever. When the process has read some it says so, and receives
// the rest.
func TestMailboxRingThatStaysFull(t *testing.T) {
	mem, err := attach.NewMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	s := newSlot(new(node), 0, &Attachment{Pages: mem.Pages})
	s.process = owner.Process[*slot]{Pages: mem.Pages, Slot: s}
	for s.process.Deliver(owner.Own, func(*attach.Mail) bool { return true }) {
	}
	m := &s.mail
	m.due = true
	now := int64(1)
	for range 10 {
		m.poll(now)
		now += int64(mailTime)
	}
	if m.until != 0 {
		t.Errorf("polled for ever: %+v", m)
	}
	var got attach.Mail
	if ok, full := mem.TakeMail(&got); !ok || !full {
		t.Fatalf("taken %v, full %v", ok, full)
	}
	if processes.Room(processes{}, &s.process, owner.Own); !m.due {
		t.Error("the mailbox is not polled after the process has made room")
	}
}
