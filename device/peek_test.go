package device_test

import (
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
)

func TestChannelStateGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/peek.txt") {
		t.Run(c.Name, func(t *testing.T) {
			u := func(key string) uint64 { return c.Uint(t, key) }
			want := device.ChannelState{
				PDID: device.PDID(u("pdid")), DstPDID: device.PDID(u("dst_pdid")), Generation: device.Generation(u("generation")),
				Live: c.Bool(t, "live"), Failing: c.Bool(t, "failing"),
				Blocks: uint32(u("blocks")), Acked: uint32(u("acked")), InFlight: int(u("in_flight")), Paused: int(u("paused")),
				Issued: uint32(u("issued")), Retransmitted: uint32(u("retransmitted")),
				Window: int(u("window")), Class: uint8(u("class")),
				Oldest: device.Sequence(u("oldest")), Newest: device.Sequence(u("newest")), AgeNS: int64(u("age")),
			}
			words := [device.PeekChannelWords]uint64(c.Words(t, "words"))
			if got := want.Words(); got != words {
				t.Errorf("encoded %016x, want %016x", got, words)
			}
			if got := device.DecodeChannelState(&words); got != want {
				t.Errorf("decoded %+v, want %+v", got, want)
			}
			c.Done(t)
		})
	}
}

// A value that exceeds its field is saturated and affects no other field.
func TestChannelStateFull(t *testing.T) {
	s := device.ChannelState{Blocks: 1 << 31, InFlight: 5000, Window: 1 << 20, AgeNS: -1}
	if w := s.Words(); w != [device.PeekChannelWords]uint64{0x7ff << 32, 0x7ff<<38 | 0x7ffff} {
		t.Errorf("%x", w)
	}
}

func FuzzChannelState(f *testing.F) {
	f.Add(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0))
	f.Add(uint64(0x80001008beef1234), uint64(0x00040200001c0001), uint64(5), uint64(6), uint64(7))
	f.Fuzz(func(t *testing.T, a, b, c, d, e uint64) {
		words := [device.PeekChannelWords]uint64{a, b, c, d, e}
		s := device.DecodeChannelState(&words)
		got := s.Words()
		for i := range words {
			r, _, ok := device.Lookup(device.PL, device.PeekChannel(1, 2)+8*uint32(i))
			if !ok {
				t.Fatalf("word %d has no register", i)
			}
			want := words[i] & r.Read
			if i == device.PeekAge/8 {
				want = min(want, 1<<63-1)
			}
			if got[i] != want {
				t.Errorf("word %d: %x became %x, want %x", i, words[i], got[i], want)
			}
		}
	})
}

// The windows are where docs/spec/peek.md says.
func TestPeekWindows(t *testing.T) {
	for _, tt := range []struct {
		offset uint32
		name   string
		index  int
	}{
		{0x7f80, "WORDS", 0}, {0x7ff8, "WORDS", 15}, {0x7f7c, "", 0},
		{0x8000, "PEEK_RXFIFO_AB", 0}, {0x8008, "PEEK_RXFIFO_CD", 0}, {0x8010, "PEEK_RXFIFO_EXT", 0}, {0x8014, "", 0},
		{0xbfe0, "PEEK_RXFIFO_AB", 511}, {0xc000, "PEEK_TXFIFO_AB", 0}, {0xfff0, "PEEK_TXFIFO_EXT", 511},
		{0x10000, "PEEK_CHANNEL_STATE", 0}, {0x10048, "PEEK_CHANNEL_BLOCKS", 1}, {0x10028, "", 0},
		{0x1ffd0, "PEEK_CHANNEL_BYTES", 1023}, {0x1ffd8, "PEEK_CHANNEL_SEQUENCES", 1023}, {0x1ffe0, "PEEK_CHANNEL_AGE", 1023},
	} {
		r, i, _ := device.Lookup(device.PL, tt.offset)
		if r.Name != tt.name || i != tt.index {
			t.Errorf("0x%x: %s[%d], want %s[%d]", tt.offset, r.Name, i, tt.name, tt.index)
		}
		if r.Write|r.W1C|r.Act != 0 {
			t.Errorf("%s can be written", r.Name)
		}
	}
	if at := device.PeekEntry(true, 511); at != 0xffe0 {
		t.Errorf("the last entry of TXFIFO at 0x%x", at)
	}
	if at := device.PeekChannel(15, 63); at != 0x1ffc0 {
		t.Errorf("the last channel at 0x%x", at)
	}
}
