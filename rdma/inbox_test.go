package rdma

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

func mailOf(pdid device.PDID, n int, words ...uint64) *attach.Mail {
	m := &attach.Mail{Source: mailbox.Source{Node: 3, Interface: 17, PDID: pdid, Words: n}.Encode()}
	copy(m.Words[:], words)
	return m
}

func TestInbox(t *testing.T) {
	const pdid = 0x1234
	for name, c := range map[string]struct {
		mail                                *attach.Mail
		program, stream, connection, memory int
		refusals, dropped                   int
		answer                              bool
	}{
		"program":              {mail: mailOf(pdid, 1, 0), program: 1},
		"eight words":          {mail: mailOf(pdid, 8, 0xff00000000000003), program: 1},
		"stream":               {mail: mailOf(pdid, 2, 12<<18), stream: 1},
		"connection":           {mail: mailOf(pdid, 2, 13<<18), connection: 1},
		"memory":               {mail: mailOf(pdid, 2, 14<<18), memory: 1},
		"reserved kind":        {mail: mailOf(pdid, 2, 11<<18), dropped: 1},
		"last kind":            {mail: mailOf(pdid, 2, 63<<18), dropped: 1},
		"no words":             {mail: mailOf(pdid, 0, 0), dropped: 1},
		"as a refusal":         {mail: mailOf(pdid, 1, mailbox.Refusal{Number: 5}.Encode()), program: 1},
		"as an answer":         {mail: mailOf(pdid, 1, mailbox.Ack{Transaction: 5}.Encode()), program: 1},
		"refusal":              {mail: mailOf(0, 1, mailbox.Refusal{Number: 5}.Encode()), refusals: 1},
		"answer":               {mail: mailOf(0, 1, mailbox.Ack{Transaction: 5}.Encode()), answer: true},
		"firmware's other one": {mail: mailOf(0, 1, uint64(mailbox.OpRAPF)), dropped: 1},
	} {
		var b inbox
		b.kinds[0].last = 9
		a, node, answer := b.put(c.mail)
		if answer != c.answer || answer && (a.Transaction != 5 || node != 3) {
			t.Errorf("%s: answer %v, %+v of node %d", name, answer, a, node)
		}
		k := &b.kinds
		if k[0].messages.len() != c.program || k[1].messages.len() != c.stream || k[2].messages.len() != c.connection || k[3].messages.len() != c.memory ||
			k[0].refusals.len() != c.refusals || b.dropped != uint64(c.dropped) {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// The wired bits are not the sender's: the first word has zeros there. SOURCE names the sender.
func TestInboxMessage(t *testing.T) {
	var b inbox
	b.put(mailOf(0xffff, 2, 0xab00000000000003|mailbox.WiredBits, 7, 8))
	m, ok := b.take(mailbox.KindProgram)
	if !ok || m != (Message{Node: 3, Interface: 17, PDID: 0xffff, N: 2, Words: [8]uint64{0xab00000000000003, 7}}) {
		t.Errorf("%+v, %v", m, ok)
	}
}

// A full queue drops what comes, in order, and no other queue's messages or answers.
func TestInboxFull(t *testing.T) {
	var b inbox
	for i := range uint64(messagesKept + 10) {
		b.put(mailOf(1, 2, 0, i))
	}
	if b.kinds[0].messages.len() != messagesKept || b.dropped != 10 {
		t.Fatalf("%d kept, %d dropped", b.kinds[0].messages.len(), b.dropped)
	}
	if _, _, ok := b.put(mailOf(0, 1, mailbox.Ack{}.Encode())); !ok {
		t.Error("an answer is dropped with the messages")
	}
	if b.put(mailOf(1, 1, 12<<18)); b.kinds[1].messages.len() != 1 {
		t.Error("a message of another kind is dropped")
	}
	for i := range uint64(3 * messagesKept) { // one is taken for each that comes
		m, ok := b.take(mailbox.KindProgram)
		if want := i; !ok || i < messagesKept && m.Words[1] != want || i >= messagesKept && m.Words[1] != i+1000 {
			t.Fatalf("message %d: %v, %v", i, m.Words[1], ok)
		}
		b.put(mailOf(1, 2, 0, i+messagesKept+1000))
	}
	if b.kinds[0].messages.len() != messagesKept || cap(b.kinds[0].messages.list) > 2*messagesKept {
		t.Errorf("%d messages in room for %d", b.kinds[0].messages.len(), cap(b.kinds[0].messages.list))
	}
}

func TestInboxNumbers(t *testing.T) {
	for _, c := range []struct {
		last, want uint32
	}{
		{1, 1}, {9, 1}, {0x3fff, 1}, {0x4000, 0x4000}, {0x4000, 1}, {0x12345, 0x12345}, {0x12345, 0xe346},
		{maxNumber, maxNumber}, {maxNumber, maxNumber - 0x3fff},
	} {
		b := kindBox{last: c.last}
		if got := b.number(uint16(c.want & 0x3fff)); got != c.want {
			t.Errorf("after %#x: %#x becomes %#x", c.last, c.want, got)
		}
	}
	for k, want := range map[mailbox.Kind]uint16{mailbox.KindProgram: 1, mailbox.KindStream: 0x4001, mailbox.KindConnection: 0x8001, mailbox.KindMemory: 0xc001} {
		var b inbox
		if number, send := b.next(k); number != 1 || send != want {
			t.Errorf("kind %d: number %d, %#x in SEND", k, number, send)
		}
		b.box(k).last = maxNumber
		if number, send := b.next(k); number != 1 || send != want {
			t.Errorf("kind %d, after the largest number: %d, %#x in SEND", k, number, send)
		}
		b.put(mailOf(0, 1, mailbox.Refusal{Number: want}.Encode()))
		if m, ok := b.take(k); !ok || m.Refused != maxNumber-0x3ffe || m.Node != 3 {
			t.Errorf("kind %d: refusal %+v, %v", k, m, ok)
		}
	}
	if e := error(&RefusedError{Number: 7}); !errors.Is(e, ErrRefused) {
		t.Errorf("%v", e)
	}
}

func FuzzInbox(f *testing.F) {
	f.Add(uint64(0x0100123411000003), uint32(5), []byte{1, 0, 0, 0, 5, 0, 0, 0})
	f.Fuzz(func(t *testing.T, source uint64, last uint32, b []byte) {
		m := attach.Mail{Source: source}
		for i := range m.Words {
			if len(b) >= 8*i+8 {
				m.Words[i] = binary.LittleEndian.Uint64(b[8*i:])
			}
		}
		var in inbox
		for i := range in.kinds {
			in.kinds[i].last = last & maxNumber
		}
		_, _, answer := in.put(&m)
		kept := in.len() + int(in.dropped)
		firmware := source>>32&0xffff == 0
		if answer == (kept == 1) || kept > 1 || answer && !firmware {
			t.Errorf("answer %v, %d kept or dropped", answer, kept)
		}
		for _, k := range []mailbox.Kind{mailbox.KindProgram, mailbox.KindStream, mailbox.KindConnection, mailbox.KindMemory} {
			m, ok := in.take(k)
			if ok && (m.Refused != 0) != firmware {
				t.Errorf("%+v", m)
			}
			if ok && firmware && m.Refused > maxNumber || ok && !firmware && (m.N < 1 || m.N > MaxMessageWords || m.Words[0]&mailbox.WiredBits != 0) {
				t.Errorf("%+v", m)
			}
		}
	})
}
