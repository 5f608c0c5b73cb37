package attach

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/packetizer"
)

// Port is one interface of a process, in two pages: a packetizer, through which the process sends
// messages, a ring of the messages in its mailbox, and the words on which the process waits. Its
// methods are safe for concurrent use unless they say otherwise.
type Port struct{ words }

// Mail is a message of the process's mailbox.
type Mail struct {
	Source uint64 // as in register SOURCE (hardware.md 3, window mbox)
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

// Ended reports whether pfd has ended a GSAS thread, because its tree is lost.
func (p *Port) Ended() bool { return p.load32(portEnded) != 0 }

// Send writes a message to packetizer channel c (0..3): its destination node and mailbox and one
// to eight words. SEND is stored last (release). Send returns false and writes nothing if the
// channel is busy or the count is wrong. One goroutine at a time may use a channel.
func (p *Port) Send(c int, dst device.NodeID, mailbox uint8, words ...uint64) bool {
	return p.SendTo(c, packetizer.Destination(dst, mailbox, 0), 0, words)
}

// SendTo is Send with a DESTINATION that may name the generation of a domain, whose mailbox is
// 16..63, and with the sender's own number of the message.
func (p *Port) SendTo(c int, destination uint64, number uint16, words []uint64) bool {
	o := pktz(c)
	if len(words) == 0 || len(words) > device.PktzMaxWords || p.load64(o+device.PktzSend) != 0 {
		return false
	}
	p.store64(o+device.PktzDestination, destination)
	for i, w := range words {
		p.store64(o+device.PktzPayload+8*uint32(i), w)
	}
	p.store64(o+device.PktzStatus, device.PktzBusy)
	p.store64(o+device.PktzSend, packetizer.Send(len(words), number))
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
//
// It loads the tail again after it has stored the head: pfd stores the tail before it loads the
// head. Either pfd sees the room, or TakeMail sees that the ring was full.
func (p *Port) TakeMail(m *Mail) (ok, full bool) {
	head := p.load32(mailHead)
	if head == p.load32(mailTail) {
		return false, false
	}
	o := mailSlot(head)
	m.Source = p.load64(o + mailSource)
	for i := range m.Words {
		m.Words[i] = p.load64(o + mailWords + 8*uint32(i))
	}
	p.store32(mailHead, head+1)
	return true, p.load32(mailTail)-head >= MailSlots
}

// HasMail reports whether a message waits: two loads.
func (p *Port) HasMail() bool { return p.load32(mailHead) != p.load32(mailTail) }

// The side of pfd.

// Message is a message that a process wrote to one of its packetizer channels.
type Message struct {
	Node    device.NodeID
	Mailbox uint8
	// Generation is that of the domain of the addressed mailbox, 16..63.
	Generation device.Generation
	Number     uint16 // the process's own
	Words      [device.PktzMaxWords]uint64
	N          int // words; 0: the process wrote a count outside 1..8, refuse it
}

// TakeSend copies the message of packetizer channel c into m, and reports whether there is one.
// SetPktzStatus must follow, or TakeSend returns it again.
func (p *Port) TakeSend(c int, m *Message) bool {
	o := pktz(c)
	n := p.load64(o + device.PktzSend)
	if n == 0 {
		return false
	}
	dst := p.load64(o + device.PktzDestination)
	m.Node, m.Mailbox, m.Generation = packetizer.SplitDestination(dst)
	m.N, m.Number = packetizer.SplitSend(n)
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

// Notify announces a change to the process and wakes its waiters, if any. Without waiters it is
// two atomics and no system call.
func (p *Port) Notify() {
	p.add32(portEvent, 1)
	if p.load32(portWaiters) != 0 {
		p.wake()
	}
}

// Waiting reports whether a thread of the process sleeps until a change, or is about to. A thread
// that is not counted yet checks again before it sleeps.
func (p *Port) Waiting() bool { return p.load32(portWaiters) != 0 }

// PutMail writes message number tail into the ring and publishes it. It returns false if the ring
// is full or the process has corrupted it. Notify must follow. The caller counts the messages; the
// first is number 0.
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
