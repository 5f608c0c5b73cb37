package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/mailbox"
)

// Sizes. Values below are defined by this project (docs/streams.md).
const (
	slots    = 64 // spans in flight in one direction
	maxShort = 48 // bytes of a span that fits a message

	minRing = 64 << 10
	maxRing = 16 << 20
)

// The words of one end, which its peer writes: places of bytes from their start. Defined by this
// project (docs/streams.md).
const (
	slotBytes = 16
	creditAt  = slots * slotBytes // two words
	beatAt    = creditAt + 16     // one word: what a write of completion words alone carries
	wordsSize = beatAt + 16       // of the peer; the words of two ends are aligned to 64 bytes
)

// Flags of a span. Defined by this project (docs/streams.md).
const (
	spanFIN = 1 << 0 // no span follows; it has no bytes
	// Others are of connections that also have a TCP connection: reserved here.
)

var (
	errSpan    = errors.New("the peer wrote a span that cannot be")
	errCredit  = errors.New("the peer wrote a credit that cannot be")
	errMessage = errors.New("the peer sent a message that cannot be")
)

// numberMask is the part of a span's number that its slot holds.
const numberMask = 1<<24 - 1

// refreshEvery is the period in which each slot is written at least once: the last 64 spans of each
// period go into their slots, even short ones. Otherwise the number in a slot could be so old that it
// is taken for a later one. Defined by this project (docs/streams.md).
const refreshEvery = 1 << 22

// slot is the two completion words of a span.
type slot struct {
	offset uint64 // in the stream, of the span's first byte
	length uint32
	number uint32 // the span's + 1, 24 bits; 0 in a slot that was never written
	flags  uint8
}

// encode returns the words: the first is the offset; the last has the length in [31:0], the number
// in [55:32] and the flags in [63:56].
func (s slot) encode() (first, last uint64) {
	return s.offset, uint64(s.length) | uint64(s.number&numberMask)<<32 | uint64(s.flags)<<56
}

func decodeSlot(first, last uint64) slot {
	return slot{offset: first, length: uint32(last), number: uint32(last>>32) & numberMask, flags: uint8(last >> 56)}
}

// credit is the receiver's two completion words: what it has consumed.
type credit struct {
	bytes uint64
	spans uint64 // all of whose bytes are consumed
	reset bool   // the receiver takes no more
}

const creditReset = 1 << 63

// encode returns the words: bytes; spans, with reset in [63].
func (c credit) encode() (first, last uint64) {
	if last = c.spans; c.reset {
		last |= creditReset
	}
	return c.bytes, last
}

func decodeCredit(first, last uint64) credit {
	return credit{bytes: first, spans: last &^ creditReset, reset: last&creditReset != 0}
}

// short is a span in a message of kind 12.
type short struct {
	to     uint32 // id of the receiver's end
	number uint32 // the span's, 32 bits
	length int
	data   [maxShort]byte
}

// The words of a short span, defined by this project (docs/streams.md).
//
//	word 0: kind [23:18], length [31:24], number [63:32]
//	word 1: id of the receiver's end [31:0], zero [63:32]
//	the data, as many words as it needs
const shortHead = 2

func (s *short) encode(words *[device.PktzMaxWords]uint64) []uint64 {
	words[0] = mailbox.KindStream.Word() | uint64(s.length)<<24 | uint64(s.number)<<32
	words[1] = uint64(s.to)
	n := (s.length + 7) / 8
	for i := range n {
		words[shortHead+i] = binary.LittleEndian.Uint64(s.data[8*i:])
	}
	return words[:shortHead+n]
}

func decodeShort(words []uint64) (s short, err error) {
	if len(words) < shortHead || mailbox.KindOf(words[0]) != mailbox.KindStream {
		return s, fmt.Errorf("%w: it is no short span", errMessage)
	}
	s.to, s.number, s.length = uint32(words[1]), uint32(words[0]>>32), int(uint8(words[0]>>24))
	if s.length == 0 || s.length > maxShort || len(words) != shortHead+(s.length+7)/8 || words[1]>>32 != 0 {
		return s, fmt.Errorf("%w: a short span of %d bytes in %d words", errMessage, s.length, len(words))
	}
	for i, w := range words[shortHead:] {
		binary.LittleEndian.PutUint64(s.data[8*i:], w)
	}
	return s, nil
}

// op is the operation of a connection message. Defined by this project (docs/streams.md).
type op uint8

const (
	opConnect  op = 1 // asked again until accept or reject comes
	opAccept   op = 2
	opReject   op = 3
	opShutdown op = 4 // asked again until the peer answers with flagAnswer
)

// Flags of a shutdown; reasons of a reject. Defined by this project (docs/streams.md).
const (
	flagAnswer   = 1 << 0 // to a shutdown
	flagReset    = 1 << 1 // the connection was reset
	flagDoubtful = 1 << 2 // a write of the sender's failed: its bytes may still arrive
	flagUnknown  = 1 << 3 // in an answer: the sender has no such end, and will write nothing

	reasonPort = 1 // nobody listens there
	reasonRoom = 2 // no memory for another connection
)

// message is a message of a connection, kind 13.
type message struct {
	op         op
	from       uint32 // id of the sender's end; 0 in a reject
	to         uint32 // id of the receiver's end, 0 if unknown; connect: the port
	generation device.Generation
	flags      uint8
	ring       device.VA // of the sender
	size       uint32    // of the ring
	words      device.VA // of the sender
	caller     [3]uint64 // the program's: Dial sends zeros
}

// The words of a connection's message, defined by this project (docs/streams.md).
//
//	word 0: kind [23:18], op [31:24], id of the sender's end [63:32]
//	word 1: id of the receiver's end or port [31:0], generation of the sender's domain [63:32]
//	word 2: address of the sender's ring
//	word 3: bytes of the ring [31:0], flags or reason [39:32], zero [63:40]
//	word 4: address of the sender's words
//	words 5 to 7: the caller's
func (m *message) encode() [device.PktzMaxWords]uint64 {
	return [...]uint64{
		mailbox.KindConnection.Word() | uint64(m.op)<<24 | uint64(m.from)<<32,
		uint64(m.to) | uint64(m.generation)<<32,
		uint64(m.ring), uint64(m.size) | uint64(m.flags)<<32, uint64(m.words),
		m.caller[0], m.caller[1], m.caller[2],
	}
}

func decodeMessage(words []uint64) (m message, err error) {
	if len(words) != device.PktzMaxWords || mailbox.KindOf(words[0]) != mailbox.KindConnection {
		return m, fmt.Errorf("%w: %d words are no message of a connection", errMessage, len(words))
	}
	m = message{
		op: op(words[0] >> 24), from: uint32(words[0] >> 32),
		to: uint32(words[1]), generation: device.Generation(words[1] >> 32),
		ring: device.VA(words[2]), size: uint32(words[3]), flags: uint8(words[3] >> 32), words: device.VA(words[4]),
		caller: [3]uint64(words[5:8]),
	}
	switch {
	case words[3]>>40 != 0, m.generation == 0:
		return m, fmt.Errorf("%w: reserved bits", errMessage)
	case m.op == opConnect, m.op == opAccept:
		if m.from == 0 || m.flags != 0 || m.words%64 != 0 || !spans(m.words, wordsSize) || !spans(m.ring, uint64(m.size)) ||
			m.size < minRing || m.size > maxRing || bits.OnesCount32(m.size) != 1 {
			return m, fmt.Errorf("%w: a ring of %d bytes at %v, words at %v", errMessage, m.size, m.ring, m.words)
		}
	case m.op != opReject && m.op != opShutdown:
		return m, fmt.Errorf("%w: operation %d", errMessage, m.op)
	}
	return m, nil
}

// spans reports whether there may be size bytes of memory at va.
func spans(va device.VA, size uint64) bool {
	return va != 0 && uint64(va)+size > uint64(va)
}
