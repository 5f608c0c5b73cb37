package link

import (
	"bytes"
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// samples are frames of all kinds from a node to another.
func samples(from, to device.NodeID) []*wire.Frame {
	torn := block(from, to, 5000, 2)
	torn.Present, torn.Corrupt, torn.Duplicate = 0x9a53d&torn.Present, 0x1005&torn.Present, 0x8008&torn.Present
	torn.Present |= torn.Corrupt | torn.Duplicate
	worded := block(from, to, 777, 3)
	worded.HasWords, worded.Completion = true, wire.Completion{VA: 0x7f1234567890, First: 11, Last: ^uint64(0)}
	worded.Block, worded.Remaining, worded.Last, worded.Read = 0, 777, true, true
	missing := block(from, to, 16384, 4)
	missing.HasWords, missing.WordsMissing = true, true
	alone := block(from, to, 300, 5)
	alone.Present, alone.HasWords, alone.Completion = 0, true, worded.Completion
	h := wire.Header{SrcNode: from, DstNode: to, SrcPDID: 0x401, DstPDID: 0x202, SrcGeneration: 3, DstGeneration: 4, ID: 1023, Seq: 16383, First: 1}
	kind := func(k wire.Kind) wire.Frame {
		f := wire.Frame{Header: h}
		f.Kind = k
		return f
	}
	words, ack, refusal, message, number := kind(wire.Words), kind(wire.Ack), kind(wire.Ack), kind(wire.Message), kind(wire.Link)
	words.HasWords, words.Completion = true, worded.Completion
	ack.Code = device.CodeSlaveError
	refusal.MessageLen, refusal.Code, refusal.Remaining = 1, device.CodeBufferFull, 1<<16|77
	message.MessageLen, message.Message = 8, [8]uint64{1, 2, 3, 4, 5, 6, 7, 8}
	message.SrcInterface, message.DstMailbox = 63, 62
	number.Link = 99
	return []*wire.Frame{block(from, to, 16384, 1), torn, worded, missing, alone, &words, &ack, &refusal, &message, &number}
}

// same reports whether two frames are the same on the wire: bytes of packets that are not present
// do not count.
func same(a, b *wire.Frame) bool {
	x, y := *a, *b
	p, q := x.Payload, y.Payload
	x.Payload, y.Payload = nil, nil
	if len(p) != len(q) || x.Present != y.Present {
		return false
	}
	for i := range (len(p) + 255) / 256 {
		if x.Present>>i&1 != 0 && !bytes.Equal(p[256*i:min(256*i+256, len(p))], q[256*i:min(256*i+256, len(q))]) {
			return false
		}
	}
	return x.Header == y.Header && x.Corrupt == y.Corrupt && x.Duplicate == y.Duplicate && x.HasWords == y.HasWords &&
		x.WordsMissing == y.WordsMissing && x.Completion == y.Completion && x.Message == y.Message && x.MessageLen == y.MessageLen
}

// Frames of all kinds arrive as they were sent, both ways, with and without TLS.
func TestFramesArrive(t *testing.T) {
	for _, tls := range []bool{true, false} {
		r := newRig(t, 2, tls)
		a, b := r.two()
		for range 20 {
			for _, f := range samples(0, 3) {
				a.Send(f)
				g := b.await(t, "frame", func(g got) bool { return g.frame != nil })
				if !same(f, g.frame) {
					t.Fatalf("sent %+v\ngot %+v", f, g.frame)
				}
			}
			for _, f := range samples(2, 1) {
				b.Send(f)
				if g := a.await(t, "frame", func(g got) bool { return g.frame != nil }); !same(f, g.frame) {
					t.Fatalf("sent %+v\ngot %+v", f, g.frame)
				}
			}
		}
		i := a.Info()[0]
		if i.FramesSent != 200 || i.FramesReceived != 200 || i.Bad+i.Forged+i.Dropped != 0 || i.Connects != 1 || i.TLS != tls || i.State != Up {
			t.Errorf("%+v", i)
		}
	}
}

// TestFlush: flush writes a small content itself. The writer writes the rest of it, and all that comes meanwhile.
func TestFlush(t *testing.T) {
	q := newQueue(bulkSize)
	var written []int
	all := true
	q.begin(func(b []byte) (bool, error) {
		written = append(written, len(b))
		return all, nil
	})
	f := block(0, 2, 1000, 1)
	size := frameSize(f)
	add := func() {
		q.frame(f)
		q.flush()
	}
	add()
	q.frame(f)
	add()
	if want := []int{size, 2 * size}; !slices.Equal(written, want) || q.bytes != 0 {
		t.Fatalf("flush has written %v, want %v; %d bytes are left", written, want, q.bytes)
	}
	all = false
	add() // some of it is left
	add()
	if list, open := q.take(nil); !open || len(list) != 1 || len(list[0]) != size || len(written) != 3 {
		t.Fatalf("the writer gets %d chunks, open %v; flush has written %v", len(list), open, written)
	}
	all = true
	add() // the writer writes
	if len(written) != 3 {
		t.Fatal("flush writes beside the writer")
	}
	if list, _ := q.take(nil); len(list) != 1 {
		t.Fatalf("the writer gets %d chunks, want 1", len(list))
	}
	q.end()
	add()
	if len(written) != 3 || q.dropped != 1 {
		t.Errorf("a queue that is closed has written %d times and dropped %d frames", len(written), q.dropped)
	}
}

// The sink keeps a reader: another goroutine reads on, and the session's end does not wait for the first one.
func TestReaderLeftBehind(t *testing.T) {
	r := newRig(t, 2, true)
	a, b := r.two()
	kept := make(chan struct{})
	defer close(kept)
	b.mu.Lock()
	b.block = kept
	b.mu.Unlock()
	for n := range 5 {
		a.Send(block(0, 2, 500, byte(n)))
	}
	for n := range 5 {
		g := b.await(t, "frame", func(g got) bool { return g.frame != nil })
		if !same(block(0, 2, 500, byte(n)), g.frame) {
			t.Fatalf("frame %d is another one", n)
		}
	}
	if err := a.Cut(a.Info()[0].Host, 0); err != nil {
		t.Fatal(err)
	}
	a.awaitReady(t, false)
	a.awaitReady(t, true)
}

// Messages of processes, which may be lost, leave half of a queue to all else.
func TestMessagesLeaveRoom(t *testing.T) {
	q := newQueue(highSize)
	q.begin(nil)
	m := &wire.Frame{Header: wire.Header{Kind: wire.Message, SrcPDID: 0x10}, MessageLen: 8}
	n := 0
	for ; n < highSize; n++ {
		if p := q.frame(m); p == putNoRoom {
			break
		} else if p != putDone {
			t.Fatalf("message %d: %d", n, p)
		}
	}
	if n == 0 || q.bytes > highSize/2 {
		t.Errorf("%d messages have %d bytes of %d", n, q.bytes, highSize)
	}
	ack := &wire.Frame{Header: wire.Header{Kind: wire.Ack}}
	for q.bytes < highSize-frameSize(ack) {
		if p := q.frame(ack); p != putDone {
			t.Fatalf("an acknowledgement at %d bytes: %d", q.bytes, p)
		}
	}
	if p := q.frame(ack); p != putFull {
		t.Errorf("the queue is not full: %d", p)
	}
}
