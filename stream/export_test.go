package stream

import (
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/rdma"
)

// Names of a connection's memory at the peer, and the ids of its ends, for a hostile process.
func (c *Conn) PeerWords() rdma.Remote { return remote(c.e.peer, c.e.remote.words, wordsSize) }
func (c *Conn) IDs() (own, peer uint32) {
	return c.e.id, c.e.peerID
}

// Held returns how many areas of an endpoint's memory connections hold or have retired.
func Held(ep *rdma.Endpoint) (held, retired int) {
	s, err := stackOf(ep)
	if err != nil {
		return -1, -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory.lent, s.memory.used - len(s.memory.places) - s.memory.lent
}

// Sleeps reports whether nothing is due for the connections of an endpoint before something arrives.
func Sleeps(ep *rdma.Endpoint) bool {
	s, err := stackOf(ep)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrivals && s.planned-s.now() > int64(time.Minute)
}

// Dropped returns the messages that were of no connection.
func Dropped(ep *rdma.Endpoint) uint64 {
	s, err := stackOf(ep)
	if err != nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.h.dropped
}

const (
	CreditAt  = creditAt
	SlotBytes = slotBytes
)

// SlotWords are the words of a span.
func SlotWords(offset uint64, length, number uint32, flags uint8) (first, last uint64) {
	return slot{offset, length, number, flags}.encode()
}

// ConnectionWords are the words of a message.
func ConnectionWords(operation uint8, from, to uint32, g device.Generation, flags uint8) []uint64 {
	w := (&message{op: op(operation), from: from, to: to, generation: g, flags: flags}).encode()
	return w[:]
}
