package link

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/soc/wire"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withCRC appends the CRC-32C of b[from:], computed bit by bit.
func withCRC(b []byte, from int) []byte {
	crc := ^uint32(0)
	for _, c := range b[from:] {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ -(crc&1)&0x82f63b78
		}
	}
	crc = ^crc
	return append(b, byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24))
}

// Records worked out by hand from spec/hosts.md 2 and spec/messages.md 5.
func TestRecordsOfTheSpec(t *testing.T) {
	data := &wire.Frame{
		Header: wire.Header{
			Kind: wire.Data, Last: true, Block: 0x12345, Length: 514, SrcNode: 0x2aaaab, SrcPDID: 0xbeef, ID: 0x3001,
			DstNode: 0x155554, DstPDID: 0xcafe, Seq: 0x2002, VA: 0x123456789abc, Remaining: 514, First: 0x1ffe,
			DstGeneration: 0x11223344, SrcGeneration: 0x55667788, Epoch: 0xa1b2c3d4, Link: 0x0badcafe,
		},
		Present: 0b101, Corrupt: 0b100, Duplicate: 0b001, HasWords: true,
		Completion: wire.Completion{VA: 0x10, First: 2, Last: 3},
		Payload:    make([]byte, 514),
	}
	for i := range 256 {
		data.Payload[i] = 0xaa
	}
	data.Payload[512], data.Payload[513] = 0x77, 0x66
	h := withCRC(unhex(t, `
		31 00 00 45 23 11 10 00
		ab aa 2a f0 ee 1b 00 03
		54 55 15 e0 af 2c 00 02
		bc 9a 78 56 34 12 00 00
		02 02 00 00 fe 1f 00 00
		44 33 22 11 88 77 66 55
		d4 c3 b2 a1 fe ca ad 0b`), 0)
	content := unhex(t, `
		05 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 01
		10 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00`)
	content = append(content, bytes.Repeat([]byte{0xaa}, 256)...)
	content = withCRC(append(content, 0x77, 0x66), 0)
	n := len(h) + len(content) // 60 + 49 + 258 + 4 = 371 = 0x173
	want := append(append([]byte{0x73, 0x01, 0x00, 0x00}, h...), content...)
	if n != 0x173 || frameSize(data) != n+4 {
		t.Fatalf("the record has %#x bytes, and %#x by frameSize", n, frameSize(data))
	}
	if b := appendFrame(nil, data, frameSize(data)); !bytes.Equal(b, want) {
		t.Errorf("data is encoded as\n%s want\n%s", hex.Dump(b), hex.Dump(want))
	}
	var f wire.Frame
	if used, err := decodeFrame(want, &f, make([]byte, 514)); err != nil || used != 514 || !same(&f, data) {
		t.Errorf("data is decoded with error %v as\n%+v want\n%+v", err, f.Header, data.Header)
	}
	if _, err := decodeFrame(want, &f, make([]byte, 513)); err != errRoom {
		t.Errorf("with too little room: %v", err)
	}

	// 4 + 24 + 1 + 16 + 8: a message of two words.
	message := &wire.Frame{Header: wire.Header{Kind: wire.Message, SrcNode: 1, DstNode: 2, DstMailbox: 5}, MessageLen: 2, Message: [8]uint64{0x0102, 0x0304}}
	h = withCRC(unhex(t, `04 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 40 01 00 00 00 00`+strings.Repeat("00", 32)), 0)
	content = withCRC(unhex(t, strings.Repeat("00", 25)+`02 01 00 00 00 00 00 00 04 03 00 00 00 00 00 00`), 0)
	want = append(append([]byte{0x69, 0x00, 0x00, 0x00}, h...), content...) // 60 + 25 + 16 + 4 = 105
	if b := appendFrame(nil, message, frameSize(message)); !bytes.Equal(b, want) {
		t.Errorf("a message is encoded as\n%s want\n%s", hex.Dump(b), hex.Dump(want))
	}
	if _, err := decodeFrame(want, &f, nil); err != nil || !same(&f, message) {
		t.Errorf("a message is decoded with error %v as %+v", err, f)
	}

	// "told" as a message of a pfd; the CRC-32C of "123456789" is e3069283 (RFC 3720 B.4 has others).
	want = append([]byte{0x0d, 0x00, 0x00, 0x06}, "123456789\x83\x92\x06\xe3"...)
	if b := appendControl(nil, recordTold, []byte("123456789")); !bytes.Equal(b, want) {
		t.Errorf("a message of a pfd is encoded as %x, want %x", b, want)
	}
	if c, err := decodeControl(recordTold, want); err != nil || string(c) != "123456789" {
		t.Errorf("a message of a pfd is decoded as %q, %v", c, err)
	}
}

// A record with any field that its kind cannot have is refused: the machines of this host would
// otherwise get it.
func TestImpossibleFrames(t *testing.T) {
	spare := make([]byte, device.BlockSize)
	for name, change := range map[string]func(f *wire.Frame){
		"no kind":                  func(f *wire.Frame) { f.Kind = 0 },
		"kind 6":                   func(f *wire.Frame) { f.Kind = 6 },
		"long block":               func(f *wire.Frame) { f.Length, f.Payload, f.Remaining = 16385, make([]byte, 16385), 16385 },
		"empty block":              func(f *wire.Frame) { f.Length, f.Present, f.Payload = 0, 0, nil },
		"packets beyond the block": func(f *wire.Frame) { f.Present |= 1 << 40 },
		"no packets":               func(f *wire.Frame) { f.Present = 0 },
		"remaining is short":       func(f *wire.Frame) { f.Remaining = 599 },
		"beyond the last address":  func(f *wire.Frame) { f.VA = 1<<48 - 512 },
		"code":                     func(f *wire.Frame) { f.Code = 1 },
		"address of words":         func(f *wire.Frame) { f.HasWords, f.Completion.VA = true, 1<<48 },
		"missing words of none":    func(f *wire.Frame) { f.WordsMissing = true },
		"read of a message":        func(f *wire.Frame) { f.Kind, f.Read, f.MessageLen = wire.Message, true, 1 },
		"words of a message":       func(f *wire.Frame) { f.Kind, f.HasWords, f.MessageLen = wire.Message, true, 1 },
		"empty message":            func(f *wire.Frame) { f.Kind = wire.Message },
		"words without words":      func(f *wire.Frame) { f.Kind = wire.Words },
	} {
		f := block(0, 2, 600, 1)
		f.Remaining = 600
		change(f)
		if sound(f) {
			t.Errorf("%s: the frame counts as sound", name)
		}
		if int(f.Length) < 600 && f.Length > 0 || f.Present>>40 != 0 {
			continue // it has no record
		}
		p := wire.Frame{}
		b := appendFrame(nil, f, 0)
		copy(b, []byte{byte(len(b) - 4), byte((len(b) - 4) >> 8)})
		if _, err := decodeFrame(b, &p, spare); !errors.Is(err, errRecord) {
			t.Errorf("%s: %v, %+v", name, err, p)
		}
	}
}

// FuzzFrame decodes frames from anybody: a decoded frame is sound, lies in its room, and is encoded
// as it was.
func FuzzFrame(f *testing.F) {
	for _, s := range samples(1, 2) {
		f.Add(appendFrame(nil, s, frameSize(s)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headSize {
			return
		}
		kind, size, err := parseHead(b)
		if err != nil || size > len(b) {
			return
		}
		if b = b[:size]; kind != recordFrame {
			_, _ = decodeControl(kind, b)
			return
		}
		// The CRCs are made right, or the fuzzer would find nothing.
		if len(b) >= wordsAt+crcSize {
			putCRC(b[headerAt:bitmapsAt])
			putCRC(b[bitmapsAt:])
		}
		var frame wire.Frame
		spare := make([]byte, device.BlockSize)
		if _, err := decodeFrame(b, &frame, spare); err != nil {
			return
		}
		if !sound(&frame) || frameSize(&frame) != len(b) {
			t.Fatalf("%d bytes: %+v", len(b), frame)
		}
		if again := appendFrame(nil, &frame, len(b)); !bytes.Equal(again, b) {
			t.Fatalf("encoded again:\n%x\nwas\n%x", again, b)
		}
		// Cut into packets, the frame is what DecodePacket accepts.
		if err := wire.Cut(&frame, nil, func(p []byte) error {
			_, err := wire.DecodePacket(p)
			return err
		}); err != nil {
			t.Fatalf("its packets: %v: %+v", err, frame)
		}
	})
}

// putCRC sets the CRC at the end of b.
func putCRC(b []byte) {
	n := len(b) - crcSize
	crc := crc32.Checksum(b[:n], castagnoli)
	copy(b[n:], []byte{byte(crc), byte(crc >> 8), byte(crc >> 16), byte(crc >> 24)})
}

// FuzzHello reads the first record of a connection from anybody, judges it, and the texts are
// printable and short.
func FuzzHello(f *testing.F) {
	own := &hello{Version: version, Cluster: "c", Host: "a", Nodes: [2]device.NodeID{0, 1}, Link: "0123456789abcdef"}
	f.Add(appendControl(nil, recordHello, encodeHello(own)))
	f.Add(appendControl(nil, recordRefusal, []byte("no\x00\xff")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > headSize+crcSize {
			putCRC(b[headSize:])
		}
		content, err := readRecord(bytes.NewReader(b), recordHello)
		var refused *refusedError
		if errors.As(err, &refused) && strings.ContainsFunc(refused.text, func(r rune) bool { return r < ' ' }) {
			t.Fatalf("%q", refused.text)
		}
		if err != nil {
			return
		}
		h, err := decodeHello(content)
		if err != nil {
			return
		}
		if err := judge(h, own, Host{Name: h.Host}); err != nil && len(err.Error()) > maxRefusal {
			t.Fatalf("a refusal of %d bytes", len(err.Error()))
		}
		_, _ = h.number()
		_, _ = parseRange(h.Link)
	})
}

// FuzzDatagram feeds a link with datagrams from anybody.
func FuzzDatagram(f *testing.F) {
	q := newQueue(bulkSize)
	q.limit = 2000
	for _, s := range samples(2, 1) {
		cutFrame(q, s)
	}
	for _, c := range q.chunks {
		f.Add(c) // the number of the link is 0
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &datagramReader{}
		r.s = &session{p: &peer{host: Host{Nodes: Range{2, 3}}, own: Range{0, 1}, l: New(Config{})}}
		r.s.conns[classHigh] = &conn{}
		r.collector = wire.NewCollector(&r.pool)
		r.datagram(b, nil, func(f *wire.Frame) {
			if !sound(f) {
				t.Fatalf("%+v", f)
			}
		})
	})
}
