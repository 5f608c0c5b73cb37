package packetizer_test

import (
	"slices"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/packetizer"
)

func TestStampGolden(t *testing.T) {
	for _, c := range golden.Read(t, "testdata/stamp.txt") {
		t.Run(c.Name, func(t *testing.T) {
			want := packetizer.Config{
				PDID: device.PDID(c.Uint(t, "pdid")), Node: device.NodeID(c.Uint(t, "node")),
				Interface: uint8(c.Uint(t, "interface")), GSAS: c.Bool(t, "gsas"), Enable: c.Bool(t, "enable"),
			}
			cfg := c.Words(t, "cfg")[0]
			if got := want.Encode(); got != cfg {
				t.Errorf("PKTZ_CFG %016x, want %016x", got, cfg)
			}
			if got := packetizer.DecodeConfig(cfg); got != want {
				t.Errorf("decoded %+v, want %+v", got, want)
			}
			payload, after := c.Words(t, "before"), c.Words(t, "after")
			if want.GSAS {
				packetizer.StampThread(cfg, c.Words(t, "prot")[0], int(c.Uint(t, "channel")), uint16(c.Uint(t, "number")), payload)
			} else {
				packetizer.Stamp(cfg, payload)
			}
			if !slices.Equal(payload, after) {
				t.Errorf("stamped %016x, want %016x", payload, after)
			}
			c.Done(t)
		})
	}
}

func TestStampNothing(t *testing.T) {
	packetizer.StampThread(^uint64(0), 0, 0, 0, nil)
	packetizer.Stamp(^uint64(0), nil) // an empty payload has no first word
}

func TestDestination(t *testing.T) {
	// messages.md 4: node[21:0], mailbox[31:24].
	if v := packetizer.Destination(0x2abcde, 63, 0xa1b2c3d4); v != 0xa1b2c3d4_3f2abcde {
		t.Errorf("%x", v)
	}
	if v := packetizer.Destination(0xffffffff, 255, 0); v != 0xff3fffff {
		t.Errorf("%x", v)
	}
	if n, m, g := packetizer.SplitDestination(0xa1b2c3d4_ffffffff); n != 0x3fffff || m != 255 || g != 0xa1b2c3d4 {
		t.Errorf("%x %d", n, m)
	}
}

func TestSendWord(t *testing.T) {
	if v := packetizer.Send(8, 0xbeef); v != 0xbeef0008 {
		t.Errorf("%x", v)
	}
	for v, want := range map[uint64]int{0xbeef0008: 8, 1: 1, 0: 0, 9: 0, 0xffff: 0, 0xffff0000: 0, 1<<32 | 1: 0, 1<<63 | 8: 0} {
		if words, number := packetizer.SplitSend(v); words != want || number != uint16(v>>16) {
			t.Errorf("%x: %d words, number %x", v, words, number)
		}
	}
}

// FuzzStamp: whatever a sender writes to a payload, the wired bits are those of the registers, and of
// form 1 the tag; all others stay as written.
func FuzzStamp(f *testing.F) {
	f.Add(uint64(0x80000046bcdebeef), uint64(0), uint8(0), uint16(0), ^uint64(0), ^uint64(0))
	f.Add(uint64(0xc0000046bcdebeef), uint64(0xfffffff), uint8(255), uint16(0xffff), uint64(0), uint64(1))
	f.Fuzz(func(t *testing.T, cfg, prot uint64, channel uint8, number uint16, first, second uint64) {
		check := func(p []uint64, wired, want uint64) {
			if p[0]&wired != want || p[0]&^wired != first&^wired || p[1] != second {
				t.Fatalf("cfg %016x over %016x: %016x", cfg, first, p)
			}
		}
		p := []uint64{first, second}
		packetizer.Stamp(cfg, p)
		check(p, 0x3fffc, cfg&0xffff<<2)
		p[0] = first
		packetizer.StampThread(cfg, prot, int(channel), number, p)
		check(p, 1<<56-1, cfg>>16&0xffffff|prot&0xffffff<<24|uint64(channel&3|uint8(number&63)<<2)<<48)
	})
}

func FuzzConfig(f *testing.F) {
	f.Add(uint64(0xc0000046bcdebeef))
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, v uint64) {
		if got := packetizer.DecodeConfig(v).Encode(); got != v&0xc00000ff_ffffffff {
			t.Fatalf("%016x encoded as %016x", v, got)
		}
	})
}

func FuzzDestination(f *testing.F) {
	f.Add(uint64(0x3f2abcde))
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, v uint64) {
		if got := packetizer.Destination(packetizer.SplitDestination(v)); got != v&0xffffffff_ff3fffff {
			t.Fatalf("%016x encoded as %016x", v, got)
		}
		if words, number := packetizer.SplitSend(v); words != 0 && packetizer.Send(words, number) != v {
			t.Fatalf("SEND %016x becomes %d words, number %x", v, words, number)
		}
	})
}
