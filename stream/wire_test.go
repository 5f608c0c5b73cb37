package stream

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/mailbox"
)

func bytesOf(words ...uint64) (b []byte) {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func wordsOf(b []byte) (words []uint64) {
	for ; len(b) >= 8; b = b[8:] {
		words = append(words, binary.LittleEndian.Uint64(b))
	}
	return words
}

// The golden bytes of docs/streams.md, in both directions.
func TestGoldenOfTheDocument(t *testing.T) {
	g := golden.Document(t, "../docs/streams.md")
	check := func(name string, got []byte, same bool) {
		t.Helper()
		if !bytes.Equal(got, g[name]) {
			t.Errorf("%s: encoded\n%x, the document has\n%x", name, got, g[name])
		}
		if !same {
			t.Errorf("%s: decoded to something else", name)
		}
		delete(g, name)
	}
	sl := slot{offset: 0x1122334455667788, length: 64, number: 2, flags: spanFIN}
	check("slot", bytesOf(two(sl.encode())...), decodeSlot(sl.encode()) == sl)
	cr := credit{bytes: 256 << 10, spans: 17, reset: true}
	check("credit", bytesOf(two(cr.encode())...), decodeCredit(cr.encode()) == cr)
	sh := short{to: 42, number: 7, length: 10}
	copy(sh.data[:], "hello, wor")
	var words [device.PktzMaxWords]uint64
	dec, err := decodeShort(wordsOf(g["short"]))
	check("short", bytesOf(sh.encode(&words)...), err == nil && dec == sh)
	for name, m := range map[string]message{
		"connect":  {op: opConnect, from: 3, to: 80, generation: 0xa1020304, ring: 0x7f0001400000, size: 256 << 10, words: 0x7f0002000440},
		"shutdown": {op: opShutdown, from: 3, to: 42, generation: 0xa1020304, flags: flagReset | flagDoubtful},
	} {
		dec, err := decodeMessage(wordsOf(g[name]))
		words := m.encode()
		check(name, bytesOf(words[:]...), err == nil && dec == m)
	}
	for name := range g {
		t.Errorf("the document has %s, which nothing checks", name)
	}
}

func two(a, b uint64) []uint64 { return []uint64{a, b} }

func TestBadMessages(t *testing.T) {
	good := message{op: opAccept, from: 3, to: 42, generation: 1, ring: 4096, size: minRing, words: 64}
	for name, change := range map[string]func(m *message){
		"ring of 0":            func(m *message) { m.size = 0 },
		"ring too small":       func(m *message) { m.size = minRing / 2 },
		"ring too large":       func(m *message) { m.size = 2 * maxRing },
		"ring no power of two": func(m *message) { m.size = 3 * minRing },
		"ring at 0":            func(m *message) { m.ring = 0 },
		"ring past the end":    func(m *message) { m.ring = 1<<64 - minRing + 1 },
		"words at 0":           func(m *message) { m.words = 0 },
		"words not aligned":    func(m *message) { m.words = 96 },
		"words past the end":   func(m *message) { m.words = 1<<64 - 64 },
		"no id":                func(m *message) { m.from = 0 },
		"flags":                func(m *message) { m.flags = 1 },
		"no generation":        func(m *message) { m.generation = 0 },
		"operation 0":          func(m *message) { m.op = 0 },
		"operation 5":          func(m *message) { m.op = 5 },
	} {
		m := good
		change(&m)
		words := m.encode()
		if _, err := decodeMessage(words[:]); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	words := good.encode()
	if _, err := decodeMessage(words[:]); err != nil {
		t.Error(err)
	}
	if _, err := decodeMessage(words[:7]); err == nil {
		t.Error("7 words are taken")
	}
	if words[3] |= 1 << 40; true {
		if _, err := decodeMessage(words[:]); err == nil {
			t.Error("reserved bits are taken")
		}
	}
	kind := mailbox.KindStream.Word()
	for name, words := range map[string][]uint64{
		"no words": nil, "one word": {kind | 1<<24}, "no bytes": {kind, 1}, "49 bytes": {kind | 49<<24, 1, 0, 0, 0, 0, 0, 0},
		"too few": {kind | 9<<24, 1, 0}, "too many": {kind | 8<<24, 1, 0, 0}, "reserved bits": {kind | 1<<24, 1 << 32, 0},
		"another kind": {1 << 24, 1, 0},
	} {
		if _, err := decodeShort(words); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, b := range golden.Document(f, "../docs/streams.md") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		words := wordsOf(b)
		if m, err := decodeMessage(words); err == nil {
			again := m.encode()
			if back, err := decodeMessage(again[:]); err != nil || back != m {
				t.Errorf("%+v, again %+v, %v", m, back, err)
			}
		}
		if s, err := decodeShort(words); err == nil {
			var again [device.PktzMaxWords]uint64
			if back, err := decodeShort(s.encode(&again)); err != nil || back != s {
				t.Errorf("%+v, again %+v, %v", s, back, err)
			}
		}
	})
}

func FuzzWords(f *testing.F) {
	f.Add(uint64(1<<63), uint64(1<<63|3))
	f.Fuzz(func(t *testing.T, first, last uint64) {
		if a, b := decodeSlot(first, last).encode(); a != first || b != last {
			t.Errorf("slot %#x %#x: %#x %#x", first, last, a, b)
		}
		if a, b := decodeCredit(first, last).encode(); a != first || b != last {
			t.Errorf("credit %#x %#x: %#x %#x", first, last, a, b)
		}
	})
}

func FuzzAddr(f *testing.F) {
	f.Add("exanet:1/16/80")
	f.Add("exanet:4194303/31/4294967295")
	f.Add("exanet:1/16/+8")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddr(s)
		if err != nil {
			return
		}
		if b, err := ParseAddr(a.String()); err != nil || a != b {
			t.Errorf("%q: %v, again %v, %v", s, a, b, err)
		}
	})
}

// A peer may write and send anything to this end: the machines' sizes and numbers stay consistent.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newWorld(t, 1)
		s := w.hosts[0]
		s.h.backlog[80] = 0
		m := message{op: opConnect, from: 9, to: 80, generation: 8, ring: 1 << 30, size: minRing, words: 1 << 31}
		words := m.encode()
		s.h.connection(0, source{1, 17, 5}, words[:])
		e := s.queue[0]
		ended := false
		for len(b) > 0 {
			w.now += int64(b[0]) << 16
			var from source
			switch n := min(len(b), 65); b[0] % 5 {
			case 0:
				copy(simOf(e).words[int(b[0])*4:], b[1:n])
			case 1:
				from = source{1, 17, 5}
				s.h.connection(w.now, from, append([]uint64{mailbox.KindConnection.Word()}, wordsOf(b[1:n])...))
			case 2:
				s.h.short(w.now, source{1, 17, 5}, append([]uint64{mailbox.KindStream.Word() | uint64(b[0])<<24, 1}, wordsOf(b[1:n])...))
			case 3:
				if !e.closed {
					if n := e.s.room(int(b[0])); n > 0 {
						e.send(w.now, n)
					}
					e.consume(w.now, len(e.r.available())/2)
				}
			default:
				if !ended {
					ended = b[0] > 200
					if ended {
						e.close(w.now)
					}
				}
			}
			b = b[min(len(b), 65):]
			for _, e := range sorted(s.h) {
				s.h.poll(w.now, e)
				if e.s.sent-e.s.base() > e.s.window || e.r.taken-e.r.read > uint64(len(e.r.ring)) || e.s.next-e.s.oldest > slots {
					t.Fatalf("%+v %+v", &e.s, &e.r)
				}
			}
		}
	})
}
