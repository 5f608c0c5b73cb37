package stream

import (
	"testing"
)

// direct is an outside that delivers at once.
type direct struct {
	outside
	words [slots][2]uint64
	to    receiver
	sent  int // messages
}

func (d *direct) short(_ *end, _ uint64, words []uint64) bool {
	s, err := decodeShort(words)
	if err == nil {
		err = d.to.message(&s)
	}
	d.sent++
	return err == nil
}

func (d *direct) write(_ *end, n, _ uint64, _ uint32, first, last uint64) bool {
	d.words[n%slots] = [2]uint64{first, last}
	return true
}

// A slot has 24 bits of a span's number. Of a connection whose spans go by message, most slots hold
// those of spans long ago: the receiver does not take one for the next span, or for one that cannot be.
func TestSlotsOfOldSpans(t *testing.T) {
	d := &direct{to: receiver{ring: make([]byte, minRing)}}
	e := &end{out: d, copy: make([]byte, minRing), peerID: 1}
	e.s.window = minRing
	span := func(n int) {
		t.Helper()
		at := e.s.next
		e.send(0, n)
		w := d.words[at%slots]
		if ok, err := d.to.take(w[0], w[1]); !ok || err != nil {
			t.Fatalf("span %d: taken %v, %v", at, ok, err)
		}
		if w = d.words[(at+1)%slots]; at > 0 {
			if ok, err := d.to.take(w[0], w[1]); ok || err != nil {
				t.Fatalf("before span %d: taken %v, %v", at+1, ok, err)
			}
		}
		d.to.consume(n)
		if !e.s.credited(credit{bytes: d.to.read, spans: d.to.done}) {
			t.Fatalf("the credit of span %d is not taken", at)
		}
		e.s.settle(func(uint64) (bool, error) { return true, nil })
	}
	for range 4 {
		span(maxShort + 1)
	}
	const step = 1 << 18 // spans
	for e.s.next < 5<<24/2 {
		for range 2 * slots {
			span(1)
		}
		// The spans between went by message, and touched no slot.
		skip := step - e.s.next%step - slots
		for _, n := range []*uint64{&e.s.next, &e.s.oldest, &e.s.credit.spans, &d.to.next, &d.to.done} {
			*n += skip
		}
	}
	if d.sent == 0 {
		t.Error("no span went by message")
	}
}
