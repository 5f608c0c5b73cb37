package attach

import "github.com/exanet/pfd/device"

// Mail is a message of the process's mailbox.
type Mail struct {
	Source uint64 // as register SOURCE has it (hardware.md 3, window mbox)
	Words  [device.PktzMaxWords]uint64
}

func mailSlot(i uint32) uint32 { return MailRing + MailStride*(i%MailSlots) }

// PutMail is pfd's side: it puts message number tail into the ring and makes it
// seen; false: the ring is full, or the process has written nonsense there.
// Notify must follow. Whoever puts keeps count by himself: the first is 0.
func (p *Pages) PutMail(tail uint32, m *Mail) bool {
	if tail-p.load32(MailHead) >= MailSlots {
		return false
	}
	o := mailSlot(tail)
	p.store64(o+MailSource, m.Source)
	for i, w := range m.Words {
		p.store64(o+MailWords+8*uint32(i), w)
	}
	p.store32(MailTail, tail+1)
	return true
}

// TakeMail is the library's side: it takes the next message, false: there is
// none. full tells that the ring was full: a kick must follow, so that pfd goes
// on. One goroutine at a time may call it.
func (p *Pages) TakeMail(m *Mail) (ok, full bool) {
	head, tail := p.load32(MailHead), p.load32(MailTail)
	if head == tail {
		return false, false
	}
	o := mailSlot(head)
	m.Source = p.load64(o + MailSource)
	for i := range m.Words {
		m.Words[i] = p.load64(o + MailWords + 8*uint32(i))
	}
	p.store32(MailHead, head+1)
	return true, tail-head >= MailSlots
}

// HasMail tells whether a message waits: two loads.
func (p *Pages) HasMail() bool { return p.load32(MailHead) != p.load32(MailTail) }
