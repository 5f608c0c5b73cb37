package attach

import "github.com/exanet/pfd/device"

// Port is one interface of a process, in two pages: a packetizer, by which the process
// sends messages, and a ring of the messages that have come to its mailbox, with the
// words by which the process waits. Its methods are safe for concurrent use but where
// they say otherwise.
type Port struct{ words }

// Mail is a message of the process's mailbox.
type Mail struct {
	Source uint64 // as register SOURCE has it (hardware.md 3, window mbox)
	Words  [device.PktzMaxWords]uint64
}

func mailSlot(i uint32) uint32 { return mailRing + mailStride*(i%MailSlots) }

func pktz(c int) uint32 {
	return portPktz + device.PktzChannelStride*uint32(c&(device.PktzChannels-1))
}

// The library's side.

// Event returns the event word, which changes whenever a descriptor, the mailbox or
// the state changed.
func (p *Port) Event() uint32 { return p.load32(portEvent) }

// Send hands a message to packetizer channel c (0..3): its destination node and
// mailbox and one to eight words. SEND is stored last (release). It returns false,
// and has written nothing, if the channel is still busy or the count is wrong.
// One goroutine at a time may use a channel.
func (p *Port) Send(c int, dst device.NodeID, mailbox uint8, words ...uint64) bool {
	o := pktz(c)
	if len(words) == 0 || len(words) > device.PktzMaxWords || p.load64(o+device.PktzSend) != 0 {
		return false
	}
	p.store64(o+device.PktzDestination, uint64(dst&device.NodeIDMask)|uint64(mailbox)<<24)
	for i, w := range words {
		p.store64(o+device.PktzPayload+8*uint32(i), w)
	}
	p.store64(o+device.PktzStatus, device.PktzBusy)
	p.store64(o+device.PktzSend, uint64(len(words)))
	return true
}

// SendStatus returns the state of packetizer channel c: device.PktzBusy until pfd
// has taken the message, then device.PktzFree or device.PktzRefused.
func (p *Port) SendStatus(c int) uint64 {
	o := pktz(c)
	if p.load64(o+device.PktzSend) != 0 {
		return device.PktzBusy
	}
	return p.load64(o + device.PktzStatus)
}

// AddWaiters adds n (1 before, -1 after a wait) to the number of waiting threads.
func (p *Port) AddWaiters(n int32) { p.add32(portWaiters, uint32(n)) }

// TakeMail takes the next message; ok is false if there is none. full reports whether
// the ring was full: the caller must kick then, so that pfd continues. One goroutine at
// a time may call it.
func (p *Port) TakeMail(m *Mail) (ok, full bool) {
	head, tail := p.load32(mailHead), p.load32(mailTail)
	if head == tail {
		return false, false
	}
	o := mailSlot(head)
	m.Source = p.load64(o + mailSource)
	for i := range m.Words {
		m.Words[i] = p.load64(o + mailWords + 8*uint32(i))
	}
	p.store32(mailHead, head+1)
	return true, tail-head >= MailSlots
}

// HasMail reports whether a message waits: two loads.
func (p *Port) HasMail() bool { return p.load32(mailHead) != p.load32(mailTail) }

// The side of pfd.

// Message is what a process gave to one of its packetizer channels.
type Message struct {
	Node    device.NodeID
	Mailbox uint8
	// Generation is that of the domain whose mailbox is meant, 16..63.
	Generation device.Generation
	Words      [device.PktzMaxWords]uint64
	N          int // words; 0: the process wrote a count that is not 1..8, refuse it
}

// TakeSend copies what packetizer channel c holds into m, and reports whether
// there is anything. SetPktzStatus must follow, or it is found again.
func (p *Port) TakeSend(c int, m *Message) bool {
	o := pktz(c)
	n := p.load64(o + device.PktzSend)
	if n == 0 {
		return false
	}
	dst := p.load64(o + device.PktzDestination)
	m.Node = device.NodeID(dst & device.NodeIDMask)
	m.Mailbox = uint8(dst >> 24)
	m.Generation = device.Generation(dst >> 32)
	m.N = 0
	if n > device.PktzMaxWords {
		return true
	}
	m.N = int(n)
	for i := range m.Words {
		m.Words[i] = 0
		if i < m.N {
			m.Words[i] = p.load64(o + device.PktzPayload + 8*uint32(i))
		}
	}
	return true
}

// SetPktzStatus answers a message: the status (device.PktzFree or
// device.PktzRefused), then SEND = 0, which frees the channel.
func (p *Port) SetPktzStatus(c int, status uint64) {
	o := pktz(c)
	p.store64(o+device.PktzStatus, status)
	p.store64(o+device.PktzSend, 0)
}

// Notify tells the process that something has changed for it, and wakes its waiters if
// it has any. Without waiters it is two atomics and no system call.
func (p *Port) Notify() {
	p.add32(portEvent, 1)
	if p.load32(portWaiters) != 0 {
		p.wake()
	}
}

// Waiting reports whether a thread of the process sleeps until something changes, or
// is about to: one that is not seen yet looks once more before it sleeps.
func (p *Port) Waiting() bool { return p.load32(portWaiters) != 0 }

// PutMail puts message number tail into the ring and makes it visible. It returns false
// if the ring is full, or if the process has written nonsense there. Notify must follow.
// The caller counts the messages itself; the first is number 0.
func (p *Port) PutMail(tail uint32, m *Mail) bool {
	if tail-p.load32(mailHead) >= MailSlots {
		return false
	}
	o := mailSlot(tail)
	p.store64(o+mailSource, m.Source)
	for i, w := range m.Words {
		p.store64(o+mailWords+8*uint32(i), w)
	}
	p.store32(mailTail, tail+1)
	return true
}
