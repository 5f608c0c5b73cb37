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
		b := inbox{last: 9}
		a, node, answer := b.put(c.mail)
		if answer != c.answer || answer && (a.Transaction != 5 || node != 3) {
			t.Errorf("%s: answer %v, %+v of node %d", name, answer, a, node)
		}
		if b.program.len() != c.program || b.stream.len() != c.stream || b.connection.len() != c.connection || b.memory.len() != c.memory ||
			b.refusals.len() != c.refusals || b.dropped != uint64(c.dropped) {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// The wired bits are not the sender's: the first word has zeros there. SOURCE names the sender.
func TestInboxMessage(t *testing.T) {
	var b inbox
	b.put(mailOf(0xffff, 2, 0xab00000000000003|mailbox.WiredBits, 7, 8))
	m, ok := b.program.take()
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
	if b.program.len() != messagesKept || b.dropped != 10 {
		t.Fatalf("%d kept, %d dropped", b.program.len(), b.dropped)
	}
	if _, _, ok := b.put(mailOf(0, 1, mailbox.Ack{}.Encode())); !ok {
		t.Error("an answer is dropped with the messages")
	}
	if b.put(mailOf(1, 1, 12<<18)); b.stream.len() != 1 {
		t.Error("a message of another kind is dropped")
	}
	for i := range uint64(3 * messagesKept) { // one is taken for each that comes
		m, ok := b.program.take()
		if want := i; !ok || i < messagesKept && m.Words[1] != want || i >= messagesKept && m.Words[1] != i+1000 {
			t.Fatalf("message %d: %v, %v", i, m.Words[1], ok)
		}
		b.put(mailOf(1, 2, 0, i+messagesKept+1000))
	}
	if b.program.len() != messagesKept || cap(b.program.list) > 2*messagesKept {
		t.Errorf("%d messages in room for %d", b.program.len(), cap(b.program.list))
	}
}

func TestInboxNumbers(t *testing.T) {
	for _, c := range []struct {
		last, want uint32
	}{
		{1, 1}, {9, 1}, {0xffff, 1}, {0x10000, 0x10000}, {0x10000, 1}, {0x12345, 0x12345}, {0x12345, 0x2346},
		{maxNumber, maxNumber}, {maxNumber, maxNumber - 0xffff},
	} {
		b := inbox{last: c.last}
		if got := b.full(uint16(c.want)); got != c.want {
			t.Errorf("after %#x: %#x becomes %#x", c.last, c.want, got)
		}
	}
	if b := (inbox{last: maxNumber}); b.next() != 1 {
		t.Errorf("after the largest number comes %d", b.next())
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
		in := inbox{last: last & maxNumber}
		_, _, answer := in.put(&m)
		kept := in.len() + int(in.dropped)
		firmware := source>>32&0xffff == 0
		if answer == (kept == 1) || kept > 1 || answer && !firmware {
			t.Errorf("answer %v, %d kept or dropped", answer, kept)
		}
		for _, q := range []*fifo[Message]{&in.program, &in.stream, &in.connection, &in.memory} {
			if g, ok := q.take(); ok && (firmware || g.N < 1 || g.N > MaxMessageWords || g.Words[0]&mailbox.WiredBits != 0) {
				t.Errorf("%+v", g)
			}
		}
		if r, ok := in.refusals.take(); ok && (!firmware || r.Number == 0 || r.Number > maxNumber) {
			t.Errorf("%+v", r)
		}
	})
}
