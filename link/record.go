package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

// The types of records (spec/hosts.md 2).
const (
	recordFrame   = 0
	recordHello   = 1
	recordRefusal = 2
	recordReady   = 3
	recordBeat    = 4 // heartbeat
	recordAnswer  = 5 // to a heartbeat
	recordTold    = 6
	recordIdle    = 7 // the last one of a connection

	beatSpare = 1 // content of a heartbeat of class bulk: the sender can do without the link
)

// The layout of records (spec/hosts.md 2). Offsets in a frame's record count from the record's
// beginning.
const (
	headSize    = 4 // length and type
	maxRecord   = device.BlockSize + 192
	headerAt    = headSize
	bitmapsAt   = headerAt + wire.HeaderSize + wire.CRCSize
	flagsAt     = bitmapsAt + 24
	wordsAt     = flagsAt + 1
	wordsSize   = 24
	crcSize     = 4
	flagWords   = 1
	flagMissing = 2

	maxHello   = 4096
	maxRefusal = 1024
)

// errRecord means that a record is not as spec/hosts.md 2 says. The peer's connection ends.
var errRecord = errors.New("invalid record")

// errRoom means that a payload needs more room than there is now.
var errRoom = errors.New("no room for the payload")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// head returns the first word of a record with n bytes after it.
func head(kind, n int) uint32 { return uint32(kind)<<24 | uint32(n) }

// parseHead returns the type of the record that begins with b, and its length with the head.
func parseHead(b []byte) (kind, size int, err error) {
	w := binary.LittleEndian.Uint32(b)
	kind, size = int(w>>24), headSize+int(w&0xffffff)
	if size > maxRecord || kind > recordIdle {
		return 0, 0, fmt.Errorf("%w: type %d, %d bytes, want a type up to %d and at most %d bytes", errRecord, kind, size, recordIdle, maxRecord)
	}
	return kind, size, nil
}

// sound reports whether a frame has fields that its packets could have (wire.DecodePacket), so that
// the machines can process it.
func sound(f *wire.Frame) bool {
	n := int(f.Length)
	if n > device.BlockSize || f.VA>>48 != 0 || f.Kind != wire.Ack && f.Code != 0 ||
		f.Kind > wire.Words && (f.HasWords || f.Read) || f.WordsMissing && !f.HasWords {
		return false
	}
	words := f.HasWords && !f.WordsMissing
	if words && f.Completion.VA>>48 != 0 {
		return false
	}
	switch f.Kind {
	case wire.Data:
		last := max(bits.Len64(f.Present)-1, 0) // the last packet's address has 48 bits, too
		return n > 0 && len(f.Payload) == n && f.Present&^wire.All(n) == 0 && (f.Present != 0 || words) &&
			int64(f.Remaining) >= int64(n) && (f.VA+device.VA(last*device.MTU))>>48 == 0
	case wire.Words:
		return words
	case wire.Ack:
		return f.MessageLen <= 1
	case wire.Link:
		return true
	case wire.Message:
		return f.MessageLen > 0 && f.MessageLen <= device.PktzMaxWords
	}
	return false
}

// present returns the number of payload bytes in the record of a block of n bytes.
func present(bitmap uint64, n int) int {
	size := bits.OnesCount64(bitmap) * device.MTU
	if last := wire.Packets(n) - 1; last >= 0 && bitmap>>last&1 != 0 {
		size -= (last+1)*device.MTU - n
	}
	return size
}

// frameSize returns the length of the record of a sound frame.
func frameSize(f *wire.Frame) int {
	size := wordsAt + crcSize
	if f.HasWords && !f.WordsMissing {
		size += wordsSize
	}
	switch f.Kind {
	case wire.Data:
		size += present(f.Present, int(f.Length))
	case wire.Message:
		size += 8 * int(f.MessageLen)
	}
	return size
}

// appendFrame appends the record of a sound frame, whose length is size.
func appendFrame(b []byte, f *wire.Frame, size int) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, head(recordFrame, size-headSize))
	p := wire.Packet{Header: f.Header, Words: f.HasWords, Refused: f.Kind == wire.Ack && f.MessageLen != 0}
	b = p.AppendTo(b)
	bitmap, flags := uint64(0), byte(0)
	if f.Kind == wire.Data {
		bitmap = f.Present
	}
	b = binary.LittleEndian.AppendUint64(b, bitmap)
	b = binary.LittleEndian.AppendUint64(b, f.Corrupt&bitmap)
	b = binary.LittleEndian.AppendUint64(b, f.Duplicate&bitmap)
	if f.HasWords {
		flags |= flagWords
	}
	if f.WordsMissing {
		flags |= flagMissing
	}
	b = append(b, flags)
	if flags == flagWords {
		b = binary.LittleEndian.AppendUint64(b, uint64(f.Completion.VA))
		b = binary.LittleEndian.AppendUint64(b, f.Completion.First)
		b = binary.LittleEndian.AppendUint64(b, f.Completion.Last)
	}
	switch {
	case f.Kind == wire.Message:
		for _, w := range f.Message[:f.MessageLen] {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	case bitmap == wire.All(int(f.Length)):
		if bitmap != 0 {
			b = append(b, f.Payload...)
		}
	default:
		for ; bitmap != 0; bitmap &= bitmap - 1 {
			off := bits.TrailingZeros64(bitmap) * device.MTU
			b = append(b, f.Payload[off:min(off+device.MTU, int(f.Length))]...)
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start+bitmapsAt:], castagnoli))
}

// decodeFrame decodes b, the whole record of a frame, into f. The payload lies in b if all of the
// block's packets are present, else at the beginning of spare. It returns how much of spare it
// used, and errRoom if spare is too short.
func decodeFrame(b []byte, f *wire.Frame, spare []byte) (used int, err error) {
	if len(b) < wordsAt+crcSize {
		return 0, fmt.Errorf("%w: a frame of %d bytes, want %d at least", errRecord, len(b), wordsAt+crcSize)
	}
	var p wire.Packet
	n, err := p.DecodeHeader(b[headerAt:])
	if err != nil || n != 0 || p.Offset != 0 {
		return 0, fmt.Errorf("%w: header of a frame: offset %d, payload length %d, %w", errRecord, p.Offset, n, err)
	}
	end := len(b) - crcSize
	if crc32.Checksum(b[bitmapsAt:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return 0, fmt.Errorf("%w: wrong CRC of a frame", errRecord)
	}
	flags := b[flagsAt]
	*f = wire.Frame{
		Header:       p.Header,
		Present:      binary.LittleEndian.Uint64(b[bitmapsAt:]),
		Corrupt:      binary.LittleEndian.Uint64(b[bitmapsAt+8:]),
		Duplicate:    binary.LittleEndian.Uint64(b[bitmapsAt+16:]),
		HasWords:     flags&flagWords != 0,
		WordsMissing: flags&flagMissing != 0,
	}
	rest := b[wordsAt:end]
	if flags == flagWords {
		if len(rest) < wordsSize {
			return 0, fmt.Errorf("%w: completion words of %d bytes", errRecord, len(rest))
		}
		f.Completion = wire.Completion{
			VA:    device.VA(binary.LittleEndian.Uint64(rest)),
			First: binary.LittleEndian.Uint64(rest[8:]),
			Last:  binary.LittleEndian.Uint64(rest[16:]),
		}
		rest = rest[wordsSize:]
	}
	length := int(f.Length)
	switch {
	case flags&^(flagWords|flagMissing) != 0, p.Words != f.HasWords,
		f.Kind != wire.Data && f.Present != 0, (f.Corrupt|f.Duplicate)&^f.Present != 0, length > device.BlockSize:
		return 0, fmt.Errorf("%w: fields of a frame contradict each other", errRecord)
	case f.Kind == wire.Data && len(rest) == present(f.Present, length) && f.Present == wire.All(length):
		f.Payload = rest[:length:length]
	case f.Kind == wire.Data && f.Present&^wire.All(length) == 0 && len(rest) == present(f.Present, length):
		if len(spare) < length {
			return 0, errRoom
		}
		used = length
		f.Payload = spare[:length:length]
		for m := f.Present; m != 0; m &= m - 1 {
			off := bits.TrailingZeros64(m) * device.MTU
			rest = rest[copy(f.Payload[off:min(off+device.MTU, length)], rest):]
		}
	case f.Kind == wire.Message && len(rest)%8 == 0 && len(rest) <= 8*device.PktzMaxWords:
		f.MessageLen = uint8(len(rest) / 8)
		for i := range f.MessageLen {
			f.Message[i] = binary.LittleEndian.Uint64(rest[8*i:])
		}
	case f.Kind != wire.Data && f.Kind != wire.Message && len(rest) == 0:
		if p.Refused {
			f.MessageLen = 1
		}
	default:
		return 0, fmt.Errorf("%w: %d bytes of content for a frame of kind %d and length %d", errRecord, len(rest), f.Kind, length)
	}
	if p.Refused && f.Kind != wire.Ack || !sound(f) {
		return 0, fmt.Errorf("%w: fields that a frame of kind %d cannot have", errRecord, f.Kind)
	}
	return used, nil
}

// appendControl appends a record that is not a frame.
func appendControl(b []byte, kind int, content []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, head(kind, len(content)+crcSize))
	b = append(b, content...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(content, castagnoli))
}

// decodeControl returns the content of b, a whole record of a type other than frame.
func decodeControl(kind int, b []byte) ([]byte, error) {
	end := len(b) - crcSize
	if end < headSize {
		return nil, fmt.Errorf("%w: type %d with %d bytes", errRecord, kind, len(b))
	}
	content := b[headSize:end]
	least, most := 0, 0
	switch kind {
	case recordHello:
		least, most = 2, maxHello
	case recordRefusal:
		least, most = 1, maxRefusal
	case recordBeat, recordAnswer:
		least, most = 8, 8
	case recordTold:
		most = MaxTell
	}
	if len(content) < least || len(content) > most {
		return nil, fmt.Errorf("%w: type %d with %d bytes, want %d to %d", errRecord, kind, len(content), least, most)
	}
	if crc32.Checksum(content, castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("%w: wrong CRC of type %d", errRecord, kind)
	}
	return content, nil
}
