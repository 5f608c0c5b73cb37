package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/exanet/pfd/device"
)

// cut returns the packets of f as bytes.
func cut(t testing.TB, f *Frame) [][]byte {
	t.Helper()
	var packets [][]byte
	if err := Cut(f, make([]byte, 0, MaxPacket), func(p []byte) error {
		if len(p) > MaxPacket {
			t.Errorf("a packet of %d bytes", len(p))
		}
		packets = append(packets, bytes.Clone(p))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return packets
}

// collect returns the frames of packets that arrive in one batch.
func collect(t testing.TB, packets [][]byte) (frames []*Frame, dropped int) {
	t.Helper()
	c := NewCollector(new(Pool))
	emit := func(f *Frame) { frames = append(frames, f) }
	for _, b := range packets {
		p, err := DecodePacket(b)
		if err != nil {
			t.Fatalf("packet %x: %v", b, err)
		}
		if c.Add(&p, emit) {
			dropped++
		}
	}
	c.Flush(emit)
	c.Flush(emit)
	return frames, dropped
}

// dataFrame returns a block of length bytes.
func dataFrame(length int, words bool) *Frame {
	f := &Frame{
		Header: Header{
			Kind: Data, Epoch: 9, SrcNode: 0x3ffff0, SrcPDID: 0xfff1, DstNode: 0x2abcde, DstPDID: 0xfff1,
			ID: 1023, Seq: 0x3fff, First: 0x3ffe, Block: 262144, Length: uint16(length),
			VA: 0x7ffdeadb0123, Remaining: uint32(length), Last: true,
		},
		Payload: make([]byte, length), Present: All(length),
	}
	for i := range f.Payload {
		f.Payload[i] = byte(i*7 + i>>8)
	}
	if words {
		f.HasWords = true
		f.Completion = Completion{VA: 0x7ffdeadb8000, First: 0x1111111122222222, Last: 0x8877665544332211}
	}
	return f
}

func sameFrame(t *testing.T, got, want *Frame) {
	t.Helper()
	g, w := *got, *want
	g.Payload, w.Payload = nil, nil
	if !reflect.DeepEqual(g, w) {
		t.Errorf("frame\n%+v, want\n%+v", g, w)
	}
	for left := want.Present; left != 0; left &= left - 1 {
		from := bits.TrailingZeros64(left) * device.MTU
		to := min(from+device.MTU, len(want.Payload))
		if !bytes.Equal(got.Payload[from:to], want.Payload[from:to]) {
			t.Errorf("bytes %d to %d differ", from, to)
		}
	}
	if len(got.Payload) != len(want.Payload) {
		t.Errorf("%d bytes, want %d", len(got.Payload), len(want.Payload))
	}
}

func TestCutCollect(t *testing.T) {
	frames := map[string]*Frame{
		"one byte": dataFrame(1, false), "a packet": dataFrame(256, false), "a packet and a byte": dataFrame(257, false),
		"a block": dataFrame(16384, false), "a block and words": dataFrame(16384, true), "a byte and words": dataFrame(1, true),
		"words": {Header: Header{Kind: Words, Seq: 1, VA: 0x1000, Last: true}, HasWords: true, Completion: Completion{VA: 0x1000, First: 1, Last: 2}},
		"ack":   {Header: Header{Kind: Ack, ID: 1, Seq: 2}}, "nack": {Header: Header{Kind: Ack, ID: 1, Seq: 2, Code: 7}},
		"refusal":        {Header: Header{Kind: Ack, DstMailbox: 63, Code: device.CodeBufferFull}, MessageLen: 1},
		"message of one": {Header: Header{Kind: Message, SrcInterface: 63, DstMailbox: 1}, Message: [8]uint64{^uint64(0)}, MessageLen: 1},
		"message of 8":   {Header: Header{Kind: Message}, Message: [8]uint64{1, 2, 3, 4, 5, 6, 7, 8}, MessageLen: 8},
	}
	counts := map[string]int{"a block": 64, "a block and words": 65, "a packet and a byte": 2, "a byte and words": 2}
	for name, f := range frames {
		t.Run(name, func(t *testing.T) {
			packets := cut(t, f)
			if n := max(counts[name], 1); len(packets) != n {
				t.Errorf("%d packets, want %d", len(packets), n)
			}
			// In any order of arrival.
			for seed := range uint64(4) {
				if seed > 0 {
					rand.New(rand.NewPCG(seed, 0)).Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
				}
				got, _ := collect(t, packets)
				if len(got) != 1 {
					t.Fatalf("%d frames", len(got))
				}
				sameFrame(t, got[0], f)
			}
		})
	}
}

// TestCutOnTheLine checks the packets themselves: offsets, addresses and remaining bytes.
func TestCutOnTheLine(t *testing.T) {
	f := dataFrame(600, true)
	f.Remaining = 1000
	f.Last = false
	var got [][3]uint64
	for _, b := range cut(t, f) {
		p, err := DecodePacket(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, [3]uint64{uint64(p.Offset), uint64(p.VA), uint64(p.Remaining)})
		if !p.Words || p.Length != 600 {
			t.Errorf("%+v", p)
		}
	}
	want := [][3]uint64{{0, 0x7ffdeadb0123, 1000}, {256, 0x7ffdeadb0223, 744}, {512, 0x7ffdeadb0323, 488}, {0, 0x7ffdeadb8000, 1000}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestLossAndCorruption(t *testing.T) {
	f := dataFrame(1000, true)
	f.Present, f.Corrupt, f.Duplicate = 0b1101, 0b1000, 0b0101
	packets := cut(t, f)
	if len(packets) != 6 { // 0 twice, 2 twice, 3 corrupt, words
		t.Fatalf("%d packets", len(packets))
	}
	got, dropped := collect(t, packets)
	if len(got) != 1 || dropped != 0 {
		t.Fatalf("%d frames, %d dropped", len(got), dropped)
	}
	sameFrame(t, got[0], f)

	t.Run("words lost", func(t *testing.T) {
		got, _ := collect(t, packets[:5])
		want := *f
		want.WordsMissing, want.Completion = true, Completion{}
		sameFrame(t, got[0], &want)
		// Cut again, they stay missing.
		if n := len(cut(t, got[0])); n != 5 {
			t.Errorf("%d packets", n)
		}
	})
	t.Run("words corrupt", func(t *testing.T) {
		bad := append(packets[:5:5], bytes.Clone(packets[5]))
		bad[5][len(bad[5])-1] ^= 1
		got, dropped := collect(t, bad)
		if dropped != 1 || len(got) != 1 || !got[0].WordsMissing {
			t.Errorf("%d dropped, %+v", dropped, got)
		}
	})
	t.Run("only words", func(t *testing.T) {
		got, _ := collect(t, packets[5:])
		if len(got) != 1 || got[0].Kind != Data || got[0].Present != 0 || got[0].VA != 0 || got[0].WordsMissing || got[0].Completion != f.Completion {
			t.Errorf("%+v", got[0])
		}
	})
	t.Run("a good copy of a corrupt packet", func(t *testing.T) {
		whole := dataFrame(1000, false)
		p := cut(t, whole)
		bad := bytes.Clone(p[1])
		bad[HeaderSize+CRCSize] ^= 0xff
		for _, order := range [][][]byte{{p[0], bad, p[1], p[2], p[3]}, {p[0], p[1], bad, p[2], p[3]}} {
			got, _ := collect(t, order)
			want := *whole
			want.Corrupt, want.Duplicate = 0b10, 0b10
			sameFrame(t, got[0], &want) // its bytes are the correct ones
		}
	})
	t.Run("a corrupt message", func(t *testing.T) {
		m := cut(t, &Frame{Header: Header{Kind: Message}, MessageLen: 1})
		m[0][len(m[0])-1] ^= 1
		if got, dropped := collect(t, m); len(got) != 0 || dropped != 1 {
			t.Errorf("%d frames, %d dropped", len(got), dropped)
		}
	})
}

// TestOtherBlocks: every field of the header distinguishes blocks.
func TestOtherBlocks(t *testing.T) {
	for name, change := range map[string]func(*Frame){
		"epoch": func(f *Frame) { f.Epoch++ }, "source": func(f *Frame) { f.SrcNode++ }, "source PDID": func(f *Frame) { f.SrcPDID++ },
		"destination": func(f *Frame) { f.DstNode++ }, "destination PDID": func(f *Frame) { f.DstPDID++ },
		"id": func(f *Frame) { f.ID-- }, "sequence": func(f *Frame) { f.Seq-- }, "first": func(f *Frame) { f.First-- },
		"block": func(f *Frame) { f.Block++ }, "address": func(f *Frame) { f.VA += 256 }, "remaining": func(f *Frame) { f.Remaining++ },
		"last": func(f *Frame) { f.Last = false }, "words": func(f *Frame) { f.HasWords, f.WordsMissing = true, true },
		"length": func(f *Frame) { f.Length, f.Payload = 700, f.Payload[:700] },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := dataFrame(1000, false), dataFrame(1000, false)
			change(b)
			a.Present, b.Present = 0b0011, 0b0100
			packets := append(cut(t, a), cut(t, b)...)
			got, _ := collect(t, packets)
			if len(got) != 2 {
				t.Fatalf("%d frames", len(got))
			}
			sameFrame(t, got[0], a)
			sameFrame(t, got[1], b)
		})
	}
}

func TestCutError(t *testing.T) {
	because := errors.New("because")
	for after := range 3 {
		n := 0
		err := Cut(dataFrame(300, true), nil, func([]byte) error {
			if n++; n > after {
				return because
			}
			return nil
		})
		if !errors.Is(err, because) || n != after+1 {
			t.Errorf("after %d: %v at %d", after, err, n)
		}
	}
}

// FuzzCollector: any sequence of packets, with any fields under correct CRCs, yields frames that
// the machines accept: bitmaps within the block, as many bytes as the block has, and no packet
// lost or invented.
func FuzzCollector(f *testing.F) {
	seed := func(frames ...*Frame) {
		var all []byte
		for _, fr := range frames {
			for _, p := range cut(f, fr) {
				all = append(all, p[:HeaderSize]...)
			}
		}
		f.Add(all)
	}
	seed(dataFrame(600, true), dataFrame(600, false))
	seed(&Frame{Header: Header{Kind: Ack}}, dataFrame(16384, true))
	seed(&Frame{Header: Header{Kind: Words}, HasWords: true}, &Frame{Header: Header{Kind: Message}, MessageLen: 8})
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), 100*HeaderSize)]
		c := NewCollector(new(Pool))
		data, words, copies, singles := 0, 0, 0, 0
		emit := func(f *Frame) {
			switch f.Kind {
			case Data:
				if len(f.Payload) != int(f.Length) || f.Length == 0 || f.Length > device.BlockSize {
					t.Fatalf("%d bytes of %d", len(f.Payload), f.Length)
				}
				all := All(int(f.Length))
				if f.Present&^all != 0 || f.Corrupt&^f.Present != 0 || f.Duplicate&^f.Present != 0 {
					t.Fatalf("present %x, corrupt %x, duplicate %x of %x", f.Present, f.Corrupt, f.Duplicate, all)
				}
				if f.WordsMissing && !f.HasWords || f.Present == 0 && f.WordsMissing {
					t.Fatalf("%+v", f.Header)
				}
				data -= bits.OnesCount64(f.Present)
				copies -= bits.OnesCount64(f.Duplicate)
				if f.HasWords && !f.WordsMissing {
					words--
				}
				c.pool.Put(f)
			case Words, Ack, Message:
				singles--
			default:
				t.Fatalf("kind %d", f.Kind)
			}
		}
		for len(b) >= HeaderSize {
			raw := bytes.Clone(b[:HeaderSize])
			b = b[HeaderSize:]
			n := int(binary.LittleEndian.Uint64(raw[32:]) >> 46 & 0x1ff)
			raw = binary.LittleEndian.AppendUint32(raw, crc32c(raw))
			if n > 0 {
				payload := make([]byte, n)
				raw = append(raw, payload...)
				crc := crc32c(payload)
				if n%3 == 1 {
					crc++
				}
				raw = binary.LittleEndian.AppendUint32(raw, crc)
			}
			p, err := DecodePacket(raw)
			if err != nil {
				continue
			}
			if c.Add(&p, emit) {
				continue
			}
			switch {
			case p.Kind == Data:
				data++
			case p.Kind == Words && p.Length > 0:
				words++
			default:
				singles++
			}
		}
		c.Flush(emit)
		// Data packets after the first at their place are Duplicate, one bit for all of them; so
		// at least as many packets were taken as bits are set.
		if data < 0 || data+copies < 0 || words < 0 || singles != 0 {
			t.Fatalf("left: data %d, copies %d, words %d, singles %d", data, copies, words, singles)
		}
	})
}

func TestCollectAllocatesNothing(t *testing.T) {
	pool := new(Pool)
	c := NewCollector(pool)
	f := dataFrame(16384, true)
	buf := make([]byte, 0, MaxPacket)
	put := func(f *Frame) { pool.Put(f) }
	add := func(b []byte) error {
		p, err := DecodePacket(b)
		if err == nil {
			c.Add(&p, put)
		}
		return err
	}
	if n := testing.AllocsPerRun(20, func() {
		if err := Cut(f, buf, add); err != nil {
			t.Fatal(err)
		}
		c.Flush(put)
	}); n != 0 {
		t.Errorf("%v allocations a block", n)
	}
}

func BenchmarkCutCollect(b *testing.B) {
	pool := new(Pool)
	c := NewCollector(pool)
	f := dataFrame(16384, false)
	buf := make([]byte, 0, MaxPacket)
	put := func(f *Frame) { pool.Put(f) }
	add := func(b []byte) error {
		p, err := DecodePacket(b)
		if err == nil {
			c.Add(&p, put)
		}
		return err
	}
	b.SetBytes(16384)
	b.ReportAllocs()
	for b.Loop() {
		if err := Cut(f, buf, add); err != nil {
			b.Fatal(err)
		}
		c.Flush(put)
	}
}
