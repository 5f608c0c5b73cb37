package stream_test

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/exanet/pfd/mailbox"
	"github.com/exanet/pfd/rdma"
	"github.com/exanet/pfd/stream"
)

// A peer writes spans and credits that cannot be, and sends messages that cannot be: the connection
// is reset, and another one of the same processes goes on.
func TestHostilePeer(t *testing.T) {
	socket := startPFD(t)
	from, to := attach(t, socket, 0), attach(t, socket, 1)
	l := listen(t, to, ":80")
	good, echo := pair(t, from, l)
	go io.Copy(echo, echo)
	words := func(at uint64, first, last uint64) func(*testing.T, *stream.Conn) {
		return func(t *testing.T, c *stream.Conn) {
			w, err := from.Write(t.Context(), rdma.WriteRequest{Src: make([]byte, 8), Dst: c.PeerWords(), Offset: stream.CreditAt + 16, Notify: &rdma.Notification{Offset: at, First: first, Last: last}, Wait: true})
			if err == nil {
				err = w.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	span := func(slot, offset uint64, length, number uint32, flags uint8) func(*testing.T, *stream.Conn) {
		first, last := stream.SlotWords(offset, length, number, flags)
		return words(slot*stream.SlotBytes, first, last)
	}
	send := func(e *rdma.Endpoint, build func(own, peer uint32) []uint64) func(*testing.T, *stream.Conn) {
		return func(t *testing.T, c *stream.Conn) {
			err := rdma.ErrBusy
			for w := build(c.IDs()); errors.Is(err, rdma.ErrBusy); {
				_, err = e.Post(c.PeerWords(), w...)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	generation := from.Info().Generation
	for name, attack := range map[string]func(*testing.T, *stream.Conn){
		"a span of another slot":  span(0, 0, 5, 2, 0),
		"a span ahead":            span(0, 0, 5, 65, 0),
		"a span elsewhere":        span(0, 7, 5, 1, 0),
		"a span without bytes":    span(0, 0, 0, 1, 0),
		"a span beyond the ring":  span(0, 0, 1<<32-1, 1, 0),
		"a span by TCP":           span(0, 0, 5, 1, 2),
		"all bits":                words(0, ^uint64(0), ^uint64(0)),
		"credit for more bytes":   words(stream.CreditAt, 1, 0),
		"credit for more spans":   words(stream.CreditAt, 0, 1),
		"credit of all bits":      words(stream.CreditAt, ^uint64(0), ^uint64(0)),
		"a short span of 0 bytes": send(from, func(_, peer uint32) []uint64 { return []uint64{mailbox.KindStream.Word(), uint64(peer)} }),
		"a short span beyond": send(from, func(_, peer uint32) []uint64 {
			return []uint64{mailbox.KindStream.Word() | 1<<24 | 64<<32, uint64(peer), 0}
		}),
		"an unknown operation":       send(from, func(own, peer uint32) []uint64 { return stream.ConnectionWords(9, own, peer, generation, 0) }),
		"a shutdown that is a reset": send(from, func(own, peer uint32) []uint64 { return stream.ConnectionWords(4, own, peer, generation, 2) }),
	} {
		a, b := pair(t, from, l)
		attack(t, a)
		_, err := b.Read(make([]byte, 10))
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: read: %v", name, err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: write: %v", name, err)
		}
		a.Close()
		b.Close()
		alive(t, good)
	}

	// Of another process: nothing happens to the connection.
	third := attach(t, socket, 0)
	before := stream.Dropped(to)
	g3 := third.Info().Generation
	for _, attack := range []func(*testing.T, *stream.Conn){
		send(third, func(_, peer uint32) []uint64 { return []uint64{mailbox.KindStream.Word() | 1<<24, uint64(peer), 'x'} }),
		send(third, func(own, peer uint32) []uint64 { return stream.ConnectionWords(4, own, peer, generation, 3) }),
		send(third, func(own, peer uint32) []uint64 { return stream.ConnectionWords(3, own, peer, g3, 1) }),
		send(third, func(_, peer uint32) []uint64 { return stream.ConnectionWords(4, 0, peer, g3, 1) }),
		send(third, func(_, peer uint32) []uint64 { return []uint64{mailbox.KindConnection.Word(), uint64(peer)} }),
	} {
		attack(t, good)
	}
	for stream.Dropped(to) < before+5 {
		alive(t, good)
	}
}

// alive sends something there and back.
func alive(t *testing.T, c *stream.Conn) {
	t.Helper()
	b := make([]byte, 100)
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
}
