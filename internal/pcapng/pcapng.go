// Package pcapng encodes and splits the blocks of a pcapng capture (draft-ietf-opsawg-pcapng),
// as far as captures of links need them. All fields are little-endian; times are in
// nanoseconds.
package pcapng

import (
	"encoding/binary"
	"errors"
	"io"
)

// Block types (draft-ietf-opsawg-pcapng 4).
const (
	TypeSection    = 0x0a0d0d0a
	TypeInterface  = 1
	TypeStatistics = 5
	TypePacket     = 6
)

// User0 is LINKTYPE_USER0 (tcpdump.org, link-layer header types): private use.
const User0 = 147

// Directions of a packet (draft-ietf-opsawg-pcapng 4.3.1, epb_flags).
const (
	Inbound  = 1
	Outbound = 2
)

const (
	magic = 0x1a2b3c4d // draft 4.1, Byte-Order Magic

	// Options of a block (draft 3.5, 4.1 to 4.4).
	optApplication = 4 // shb_userappl
	optName        = 2 // if_name
	optResolution  = 9 // if_tsresol
	optFlags       = 2 // epb_flags
	optDropped     = 4 // epb_dropcount
	optReceived    = 4 // isb_ifrecv
	optLost        = 5 // isb_ifdrop

	overhead = 12 // of a block: type, length, and the length repeated
)

// MaxBlock is the longest block that Blocks accepts; defined by this project.
const MaxBlock = 64 << 10

var le = binary.LittleEndian

// Section appends the block that begins a capture; application names the program that makes it.
func Section(b []byte, application string) []byte {
	b, start := begin(b, TypeSection)
	b = le.AppendUint32(b, magic)
	b = le.AppendUint16(b, 1) // version 1.0
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, ^uint64(0)) // of unknown length
	b = option(b, optApplication, []byte(application))
	return end(b, start)
}

// Interface appends the description of the next interface; interfaces count from 0. Its packets
// hold at most snap bytes; 0 means all.
func Interface(b []byte, snap int, name string) []byte {
	b, start := begin(b, TypeInterface)
	b = le.AppendUint32(b, User0)
	b = le.AppendUint32(b, uint32(snap))
	b = option(b, optName, []byte(name))
	b = option(b, optResolution, []byte{9})
	return end(b, start)
}

// Packet appends a packet of an interface: its time in ns since 1970, its first snap bytes (0:
// all), its direction (0: none), and how many packets of the interface were lost before it.
func Packet(b []byte, iface int, at int64, packet []byte, snap int, direction uint32, lost uint64) []byte {
	b, start := begin(b, TypePacket)
	kept := packet
	if snap > 0 && len(kept) > snap {
		kept = kept[:snap]
	}
	b = stamp(b, iface, at)
	b = le.AppendUint32(b, uint32(len(kept)))
	b = le.AppendUint32(b, uint32(len(packet)))
	b = pad(append(b, kept...))
	if direction != 0 {
		b = option(b, optFlags, le.AppendUint32(nil, direction))
	}
	if lost != 0 {
		b = option(b, optDropped, le.AppendUint64(nil, lost))
	}
	return end(b, start)
}

// Statistics appends how many packets of an interface were seen so far, and how many of them
// were lost.
func Statistics(b []byte, iface int, at int64, seen, lost uint64) []byte {
	b, start := begin(b, TypeStatistics)
	b = stamp(b, iface, at)
	b = option(b, optReceived, le.AppendUint64(nil, seen))
	b = option(b, optLost, le.AppendUint64(nil, lost))
	return end(b, start)
}

func begin(b []byte, typ uint32) ([]byte, int) {
	start := len(b)
	return le.AppendUint32(le.AppendUint32(b, typ), 0), start
}

// end completes a block: the end of its options, and its length at both ends.
func end(b []byte, start int) []byte {
	n := uint32(len(b) - start + 8)
	le.PutUint32(b[start+4:], n)
	return le.AppendUint32(append(b, 0, 0, 0, 0), n)
}

func stamp(b []byte, iface int, at int64) []byte {
	b = le.AppendUint32(b, uint32(iface))
	b = le.AppendUint32(b, uint32(uint64(at)>>32))
	return le.AppendUint32(b, uint32(at))
}

func option(b []byte, code uint16, value []byte) []byte {
	b = le.AppendUint16(b, code)
	b = le.AppendUint16(b, uint16(len(value)))
	return pad(append(b, value...))
}

// pad fills up to a multiple of four, where blocks and options begin.
func pad(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// ErrBlock reports that bytes are not a block.
var ErrBlock = errors.New("pcapng: not a block, or one longer than 64 KiB")

// Blocks is a bufio.SplitFunc. Each token is a whole block with matching lengths.
func Blocks(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if len(data) < 8 {
		if atEOF && len(data) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	n := int64(le.Uint32(data[4:]))
	switch {
	case n < overhead || n%4 != 0 || n > MaxBlock:
		return 0, nil, ErrBlock
	case int64(len(data)) >= n:
		if le.Uint32(data[n-4:]) != uint32(n) {
			return 0, nil, ErrBlock
		}
		return int(n), data[:n], nil
	case atEOF:
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// TypeOf returns the type of a block that Blocks returned.
func TypeOf(block []byte) uint32 { return le.Uint32(block) }

// Lost returns the interface and the number of lost packets of a block that Statistics encoded.
func Lost(block []byte) (iface int, lost uint64, ok bool) {
	const at = 8 + 12 + 12 // after the time stamp and the first option
	if len(block) < at+12 || TypeOf(block) != TypeStatistics || le.Uint16(block[at:]) != optLost || le.Uint16(block[at+2:]) != 8 {
		return 0, 0, false
	}
	return int(le.Uint32(block[8:])), le.Uint64(block[at+4:]), true
}
