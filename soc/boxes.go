package soc

import (
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// packetizerPage is one packetizer interface (messages.md 4).
type packetizerPage [device.PktzChannels]packetizerChannel

type packetizerChannel struct {
	destination uint64
	payload     [device.PktzMaxWords]uint64
	status      uint8
	queued      bool  // the last SEND was a command of the command queue
	use         uint8 // counts SENDs, so that a late refusal finds the SEND that it is for
}

// mail is one message in a mailbox.
type mail struct {
	source mailbox.Source
	words  [device.PktzMaxWords]uint64
	next   int // words already read
}

// box is one mailbox, 64 messages deep, and as many of the firmware's deeper. Boxes 0..2 belong to the firmware and are empty between
// two steps: the firmware's loop takes their messages at once.
type box struct {
	ring     []mail // allocated with the first message
	head     int
	level    int
	overflow bool
}

// put adds a message unless most wait already.
func (b *box) put(m *mail, most int) bool {
	if b.ring == nil {
		b.ring = make([]mail, 2*device.MailboxDepth)
	}
	if b.level >= most {
		b.overflow = true
		return false
	}
	b.ring[(b.head+b.level)%len(b.ring)] = *m
	b.level++
	return true
}

// data reads the next u64 of the head message and consumes it.
func (b *box) data() uint64 {
	if b.level == 0 {
		return device.MboxEmpty
	}
	m := &b.ring[b.head]
	v := m.words[m.next]
	m.next++
	if m.next == m.source.Words {
		b.drop()
	}
	return v
}

// event returns message i as an event. It returns false for a message of more words than an event has, or
// one behind such a message or behind one that is being read.
func (b *box) event(m uint8, i int) (e device.Event, ok bool) {
	if i >= b.level {
		return e, false
	}
	for k := range i + 1 {
		if v := b.at(k); v.next != 0 || v.source.Words > device.EntryWords {
			return e, false
		}
	}
	v := b.at(i)
	e = device.Event{Kind: device.EventMessage, Index: m, Cookie: v.source.Encode()}
	copy(e.Message[:], v.words[:v.source.Words])
	return e, true
}

func (b *box) at(i int) *mail { return &b.ring[(b.head+i)%len(b.ring)] }

// long reports whether the head message has more words than an event, and none has been read.
func (b *box) long() bool {
	return b.level > 0 && b.at(0).next == 0 && b.at(0).source.Words > device.EntryWords
}

// drop removes the head message.
func (b *box) drop() {
	b.head = (b.head + 1) % len(b.ring)
	b.level--
}

func (b *box) source() uint64 {
	if b.level == 0 {
		return 0
	}
	return b.ring[b.head].source.Encode()
}

func (b *box) status() uint64 {
	v := uint64(b.level)
	if b.overflow {
		v |= 1 << 16
	}
	return v
}
