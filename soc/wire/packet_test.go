package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
)

// TestHeaderTable: the fields do not overlap and, with the undefined bits, fill the whole header;
// the widths are those of the spec.
func TestHeaderTable(t *testing.T) {
	widths := map[string]uint{
		"kind": fKind.bits, "epoch": fEpoch.bits, "source node": fSrcNode.bits, "interface": fInterface.bits, "PDID": fSrcPDID.bits,
		"destination node": fDstNode.bits, "mailbox": fMailbox.bits, "destination PDID": fDstPDID.bits,
		"id": fID.bits, "sequence": fSeq.bits, "first": fFirst.bits, "code": fCode.bits, "block": fBlock.bits,
		"length": fLength.bits, "offset": fOffset.bits, "payload": fPayload.bits, "VA": fVA.bits, "remaining": fRemaining.bits,
		"link": fLink.bits, "generation": fDstGen.bits,
	}
	// As printed in messages.md 5; the kind's width is defined by this project.
	want := map[string]uint{
		"kind": 4, "epoch": 32, "link": 32, "generation": 32, "source node": 22, "interface": 6, "PDID": 16,
		"destination node": 22, "mailbox": 6, "destination PDID": 16,
		"id": 14, "sequence": 14, "first": 14, "code": 3, "block": 19,
		"length": 15, "offset": 14, "payload": 9, "VA": 48, "remaining": 32,
	}
	if !reflect.DeepEqual(widths, want) {
		t.Errorf("widths %v, want %v", widths, want)
	}
	used := undefined
	for _, f := range []field{
		fKind, fLast, fWords, fRefused, fRead, fEpoch, fBlock, fLength, fSrcNode, fInterface, fSrcPDID, fID, fCode,
		fDstNode, fMailbox, fDstPDID, fSeq, fVA, fOffset, fRemaining, fFirst, fPayload,
		fDstGen, fSrcGen, fLink,
	} {
		m := (uint64(1)<<f.bits - 1) << f.lo
		if used[f.word]&m != 0 {
			t.Errorf("field %+v overlaps 0x%x", f, used[f.word]&m)
		}
		used[f.word] |= m
	}
	for i, w := range used {
		if w != ^uint64(0) {
			t.Errorf("word %d: bits 0x%x are neither defined nor undefined", i, ^w)
		}
	}
}

// goldenPacket decodes a vector: the packet and its bytes.
func goldenPacket(t *testing.T, c *golden.Case) (Packet, []byte) {
	u := func(key string) uint64 {
		if !c.Has(key) {
			return 0
		}
		return c.Uint(t, key)
	}
	b := func(key string) bool { return c.Has(key) && c.Bool(t, key) }
	p := Packet{
		Header: Header{
			Kind: Kind(u("kind")), Epoch: uint32(u("epoch")), Link: uint32(u("link")),
			SrcNode: device.NodeID(u("srcnode")), SrcInterface: uint8(u("interface")), SrcPDID: device.PDID(u("srcpdid")),
			DstNode: device.NodeID(u("dstnode")), DstMailbox: uint8(u("mailbox")), DstPDID: device.PDID(u("dstpdid")),
			ID: device.TransactionID(u("id")), Seq: device.Sequence(u("seq")), First: device.Sequence(u("first")), Code: device.Code(u("code")),
			Block: uint32(u("block")), Length: uint16(u("length")), VA: device.VA(u("va")),
			Remaining: uint32(u("remaining")), Last: b("last"),
			SrcGeneration: device.Generation(u("srcgen")), DstGeneration: device.Generation(u("dstgen")),
		},
		Words: b("words"), Offset: uint16(u("offset")),
	}
	var bytes []byte
	for _, w := range c.Words(t, "word") {
		bytes = binary.LittleEndian.AppendUint64(bytes, w)
	}
	bytes = binary.LittleEndian.AppendUint32(bytes, uint32(c.Words(t, "crc")[0]))
	if c.Has("payload") {
		p.Payload = c.Bytes(t, "payload")
		bytes = append(bytes, p.Payload...)
		bytes = binary.LittleEndian.AppendUint32(bytes, uint32(c.Words(t, "paycrc")[0]))
	}
	c.Done(t)
	return p, bytes
}

func TestPacketGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/packets.txt") {
		t.Run(c.Name, func(t *testing.T) {
			want, b := goldenPacket(t, c)
			if got := want.AppendTo(nil); !bytes.Equal(got, b) {
				t.Errorf("encoded\n%x, want\n%x", got, b)
			}
			got, err := DecodePacket(b)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("decoded\n%+v %v, want\n%+v", got, err, want)
			}
		})
	}
}

func dataPacket() Packet {
	return Packet{
		Header: Header{
			Kind: Data, Epoch: 1, SrcNode: 1, SrcPDID: 7, DstNode: 2, DstPDID: 7, ID: 3, Seq: 4, First: 4,
			Length: 1000, VA: 0x10000 + 256, Remaining: 5000,
		},
		Offset: 256, Payload: bytes.Repeat([]byte{0x5a}, 256),
	}
}

func TestDecodePacketRefuses(t *testing.T) {
	encode := func(change func(*Packet)) []byte {
		p := dataPacket()
		change(&p)
		return p.AppendTo(nil)
	}
	bytesOf := func(change func([]byte) []byte) []byte { return change(encode(func(*Packet) {})) }
	setBit := func(word, bit int) []byte {
		return bytesOf(func(b []byte) []byte {
			b[8*word+bit/8] |= 1 << (bit % 8)
			binary.LittleEndian.PutUint32(b[HeaderSize:], crc32c(b[:HeaderSize]))
			return b
		})
	}
	message := func(n int) []byte {
		return encode(func(p *Packet) { *p = Packet{Header: Header{Kind: Message}, Payload: make([]byte, n)} })
	}
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"good", encode(func(*Packet) {}), nil},
		{"nothing", nil, ErrSize},
		{"a header without its CRC", bytesOf(func(b []byte) []byte { return b[:HeaderSize+3] }), ErrSize},
		{"a byte short", bytesOf(func(b []byte) []byte { return b[:len(b)-1] }), ErrSize},
		{"a byte more", bytesOf(func(b []byte) []byte { return append(b, 0) }), ErrSize},
		{"no payload", bytesOf(func(b []byte) []byte { return b[:HeaderSize+CRCSize] }), ErrSize},
		{"a header bit turned", bytesOf(func(b []byte) []byte { b[20] ^= 4; return b }), ErrHeaderCRC},
		{"a bit of its CRC turned", bytesOf(func(b []byte) []byte { b[HeaderSize] ^= 1; return b }), ErrHeaderCRC},
		{"undefined bit of word 0", setBit(0, 58), ErrField},
		{"undefined bit of word 1", setBit(1, 61), ErrField},
		{"undefined bit of word 2", setBit(2, 63), ErrField},
		{"undefined bit of word 3", setBit(3, 62), ErrField},
		{"undefined bit of word 4", setBit(4, 55), ErrField},
		{"kind 0", encode(func(p *Packet) { p.Kind = 0 }), ErrField},
		{"kind 5", encode(func(p *Packet) { p.Kind = 5 }), ErrField},
		{"block of 16385", encode(func(p *Packet) { p.Length = 16385; p.Remaining = 20000 }), ErrField},
		{"block of 0", encode(func(p *Packet) { p.Length, p.Offset = 0, 0 }), ErrField},
		{"offset between packets", encode(func(p *Packet) { p.Offset = 128 }), ErrField},
		{"offset past the block", encode(func(p *Packet) { p.Offset = 1024 }), ErrField},
		{"payload too short for its place", encode(func(p *Packet) { p.Payload = p.Payload[:255] }), ErrField},
		{"payload too long for the last place", encode(func(p *Packet) { p.Offset = 768 }), ErrField},
		{"payload of 511", encode(func(p *Packet) { p.Payload = make([]byte, 511) }), ErrField},
		{"transfer that ends before the block", encode(func(p *Packet) { p.Remaining = 743 }), ErrField},
		{"transfer that ends with the block", encode(func(p *Packet) { p.Remaining = 744 }), nil},
		{"transfer of 4 GiB and more", encode(func(p *Packet) { p.Remaining = 1<<32 - 256 }), ErrField},
		{"transfer of 4 GiB - 1", encode(func(p *Packet) { p.Remaining = 1<<32 - 257 }), nil},
		{"block before address 0", encode(func(p *Packet) { p.VA = 255 }), ErrField},
		{"data with a code", encode(func(p *Packet) { p.Code = 1 }), ErrField},
		{"data that refuses", encode(func(p *Packet) { p.Refused = true }), ErrField},
		{"ack with a payload", encode(func(p *Packet) { p.Kind, p.Offset = Ack, 0 }), ErrField},
		{"ack with completion words", encode(func(p *Packet) { *p = Packet{Header: Header{Kind: Ack}, Words: true} }), ErrField},
		{"words of 15 bytes", encode(func(p *Packet) { *p = Packet{Header: Header{Kind: Words}, Words: true, Payload: make([]byte, 15)} }), ErrField},
		{"words without their flag", encode(func(p *Packet) { *p = Packet{Header: Header{Kind: Words}, Payload: make([]byte, 16)} }), ErrField},
		{"message of nothing", message(0), ErrField},
		{"message of 7 bytes", message(7), ErrField},
		{"message of 72 bytes", message(72), ErrField},
		{"message of 64 bytes", message(64), nil},
	}
	for _, tt := range tests {
		p, err := DecodePacket(tt.b)
		if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.want != nil && !reflect.DeepEqual(p, Packet{}) {
			t.Errorf("%s: refused, and yet %+v", tt.name, p)
		}
	}
}

// crc32c divides bit by bit, as for the golden vectors.
func crc32c(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0x82f63b78*(c&1)
		}
	}
	return ^c
}

func TestPayloadCRC(t *testing.T) {
	p := dataPacket()
	b := p.AppendTo(nil)
	for _, at := range []int{HeaderSize + CRCSize, len(b) - 1} {
		b[at] ^= 0x80
		got, err := DecodePacket(b)
		if err != nil || !got.Corrupt {
			t.Errorf("a bit of byte %d turned: %v, corrupt %v", at, err, got.Corrupt)
		}
		b[at] ^= 0x80
	}
	p.Corrupt = true
	if got, err := DecodePacket(p.AppendTo(nil)); err != nil || !got.Corrupt {
		t.Errorf("encoded as corrupt: %v, %v", err, got.Corrupt)
	}
}

func FuzzDecodePacket(f *testing.F) {
	p := dataPacket()
	f.Add(p.AppendTo(nil), false)
	p.Corrupt = true
	f.Add(p.AppendTo(nil), false)
	f.Add((&Packet{Header: Header{Kind: Ack, Code: 1}, Refused: true}).AppendTo(nil), true)
	f.Add((&Packet{Header: Header{Kind: Message}, Payload: make([]byte, 64)}).AppendTo(nil), true)
	f.Add((&Packet{Header: Header{Kind: Words}, Words: true, Payload: make([]byte, 16)}).AppendTo(nil), true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		// A peer can write any header under a correct CRC.
		if b = bytes.Clone(b); repair && len(b) >= HeaderSize+CRCSize {
			binary.LittleEndian.PutUint32(b[HeaderSize:], crc32c(b[:HeaderSize]))
		}
		p, err := DecodePacket(b)
		if err != nil {
			return
		}
		out := p.AppendTo(nil)
		if !p.Corrupt && !bytes.Equal(out, b) {
			t.Fatalf("%x encoded as %x", b, out)
		}
		if again, err := DecodePacket(out); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v, then %+v %v", p, again, err)
		}
	})
}
