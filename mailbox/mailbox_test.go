package mailbox_test

import (
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/golden"
	"github.com/exanet/pfd/mailbox"
)

func TestGolden(t *testing.T) {
	seen := map[string]int{}
	for _, c := range golden.Read(t, "testdata/words.txt") {
		t.Run(c.Name, func(t *testing.T) {
			words := c.Words(t, "words")
			kind := c.Text(t, "kind")
			seen[kind]++
			switch kind {
			case "ack":
				want := mailbox.Ack{
					Transaction: device.TransactionID(c.Uint(t, "transaction")),
					Code:        device.Code(c.Uint(t, "code")),
					Sequence:    device.Sequence(c.Uint(t, "sequence")),
				}
				got, err := mailbox.DecodeAnswer(words[0])
				check(t, want, got, err, want.Encode(), words[0])
				// The thesis's own decoding (messages.md 2).
				if v := words[0]; (v>>2)&0x3fff != uint64(want.Transaction) || (v>>16)&7 != uint64(want.Code) {
					t.Errorf("the thesis reads %d and %d", (v>>2)&0x3fff, (v>>16)&7)
				}
			case "rapf":
				want := mailbox.RAPF{
					PDID:        device.PDID(c.Uint(t, "pdid")),
					Transaction: device.TransactionID(c.Uint(t, "transaction")),
					Sequence:    device.Sequence(c.Uint(t, "sequence")),
					Claimed:     device.PDID(c.Uint(t, "claimed")),
					Fail:        c.Bool(t, "fail"),
				}
				got, err := mailbox.DecodeRAPF(words[0])
				check(t, want, got, err, want.Encode(), words[0])
			case "doorbell":
				want := mailbox.Doorbell{PDID: device.PDID(c.Uint(t, "pdid")), Channel: uint16(c.Uint(t, "channel"))}
				got, err := mailbox.DecodeDoorbell(words[0])
				check(t, want, got, err, want.Encode(), words[0])
				if got.Slot() != 15 {
					t.Errorf("slot %d", got.Slot())
				}
			case "refusal":
				want := mailbox.Refusal{Number: uint16(c.Uint(t, "number"))}
				got, err := mailbox.DecodeRefusal(words[0])
				check(t, want, got, err, want.Encode(), words[0])
			case "read":
				want := mailbox.ReadRequest{
					PDID: device.PDID(c.Uint(t, "pdid")), Tag: uint16(c.Uint(t, "tag")), Size: uint32(c.Uint(t, "size")),
					Src: device.VA(c.Uint(t, "src")), Dst: device.VA(c.Uint(t, "dst")), Notify: device.VA(c.Uint(t, "notify")),
					First: c.Uint(t, "first"), Last: c.Uint(t, "last"), Target: device.PDID(c.Uint(t, "target")),
					TargetGeneration: device.Generation(c.Uint(t, "generation")),
				}
				got, err := mailbox.DecodeReadRequest(words)
				check(t, want, got, err, want.Encode(), [mailbox.ReadRequestWords]uint64(words))
			case "source":
				want := mailbox.Source{
					Node: device.NodeID(c.Uint(t, "node")), Interface: uint8(c.Uint(t, "interface")),
					PDID: device.PDID(c.Uint(t, "pdid")), Words: int(c.Uint(t, "count")),
				}
				check(t, want, mailbox.DecodeSource(words[0]), nil, want.Encode(), words[0])
			default:
				t.Fatalf("kind %s", kind)
			}
			c.Done(t)
		})
	}
	for _, kind := range []string{"ack", "rapf", "doorbell", "read", "source"} {
		if seen[kind] == 0 {
			t.Errorf("no vector of %s", kind)
		}
	}
}

func check[M, W comparable](t *testing.T, want, got M, err error, encoded, words W) {
	t.Helper()
	if err != nil || got != want {
		t.Errorf("decoded %+v %v, want %+v", got, err, want)
	}
	if encoded != words {
		t.Errorf("encoded %x, want %x", any(encoded), any(words))
	}
}

func TestRefusals(t *testing.T) {
	answer := func(w uint64) error { _, err := mailbox.DecodeAnswer(w); return err }
	rapf := func(w uint64) error { _, err := mailbox.DecodeRAPF(w); return err }
	bell := func(w uint64) error { _, err := mailbox.DecodeDoorbell(w); return err }
	read := func(w ...uint64) error { _, err := mailbox.DecodeReadRequest(w); return err }
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"a RAPF in the place of an answer", answer(2), mailbox.ErrOpcode},
		{"answer with tag 0x3fff", answer(0x3fff << 2), nil},
		{"answer with another opcode", answer(1), mailbox.ErrOpcode},
		{"an ack in the place of a RAPF", rapf(0), mailbox.ErrOpcode},
		{"a doorbell in the place of a RAPF", rapf(3), mailbox.ErrOpcode},
		{"RAPF of id 1024", rapf(2 | 1024<<18), mailbox.ErrTransaction},
		{"RAPF of id 1023", rapf(2 | 1023<<18), nil},
		{"a RAPF in the place of a doorbell", bell(2), mailbox.ErrOpcode},
		{"doorbell of channel 31", bell(3 | 31<<18), nil},
		{"doorbell of channel 32", bell(3 | 32<<18), mailbox.ErrChannel},
		{"doorbell of channel 1023", bell(3 | 1023<<18), mailbox.ErrChannel},
		{"doorbell of channel 64", bell(3 | 64<<18), nil},
		{"read of no words", read(), mailbox.ErrLength},
		{"read of six words", read(1, 0, 0, 0, 0, 0), mailbox.ErrLength},
		{"read of eight words", read(1, 0, 0, 0, 0, 0, 0, 0), mailbox.ErrLength},
		{"read with another opcode", read(2, 0, 0, 0, 0, 0, 0), mailbox.ErrOpcode},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, tt.err, tt.want)
		}
	}
}

// A decoded word encodes to itself, except for bits without a name.
func FuzzAck(f *testing.F) {
	f.Add(uint64(0x0000123400010e9c))
	f.Add(uint64(0x00003fff00070ffc))
	f.Add(^uint64(3))
	f.Fuzz(func(t *testing.T, w uint64) {
		a, err := mailbox.DecodeAnswer(w)
		if err != nil {
			return
		}
		if got := a.Encode(); got != w&0x00003fff_0007ffff {
			t.Fatalf("%016x encoded as %016x", w, got)
		}
	})
}

func FuzzRAPF(f *testing.F) {
	f.Add(uint64(0x1beef2340e9efbbe))
	f.Add(uint64(0x7fffffff0ffffffe))
	f.Add(^uint64(1))
	f.Fuzz(func(t *testing.T, w uint64) {
		r, err := mailbox.DecodeRAPF(w)
		if err != nil {
			return
		}
		if got := r.Encode(); got != w&0x7fffffff_ffffffff {
			t.Fatalf("%016x encoded as %016x", w, got)
		}
	})
}

func FuzzDoorbell(f *testing.F) {
	f.Add(uint64(0x0f7c040b))
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, w uint64) {
		d, err := mailbox.DecodeDoorbell(w)
		if err != nil {
			return
		}
		if got := d.Encode(); got != w&0x0fffffff {
			t.Fatalf("%016x encoded as %016x", w, got)
		}
		if d.Slot() >= device.Slots || d.Channel%64 >= 32 {
			t.Fatalf("%+v", d)
		}
	})
}

func FuzzRefusal(f *testing.F) {
	f.Add(uint64(0x0000123400000001))
	f.Add(^uint64(2))
	f.Fuzz(func(t *testing.T, w uint64) {
		r, err := mailbox.DecodeRefusal(w)
		if (err == nil) != (w&3 == 1) {
			t.Fatalf("%016x: %v", w, err)
		}
		if got := r.Encode(); err == nil && got != w&0x0000ffff_00000003 {
			t.Fatalf("%016x encoded as %016x", w, got)
		}
	})
}

func TestKinds(t *testing.T) {
	for w, want := range map[uint64]bool{0xff0fffff_ff03ffff: true, 12 << 18: true, 14 << 18: true, 1 << 18: false, 11 << 18: false, 15 << 18: false, 63 << 18: false} {
		k := mailbox.KindOf(w)
		if k.Valid() != want || k.Word() != w&mailbox.KindBits {
			t.Errorf("%x: kind %d, valid %v, word %x", w, k, k.Valid(), k.Word())
		}
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add(7, uint64(0x00100000aaf00409), uint64(1), uint64(0x0304))
	f.Add(8, uint64(1), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, n int, first, middle, last uint64) {
		words := []uint64{first, middle, middle + 1, middle + 2, middle + 3, middle + 4, last, 0, 0}[:n&7]
		r, err := mailbox.DecodeReadRequest(words)
		if (err == nil) != (len(words) == 7 && first&3 == 1) {
			t.Fatalf("%d words, %x: %v", len(words), first, err)
		}
		if err != nil {
			return
		}
		got := r.Encode()
		want := [7]uint64(words)
		want[6] &= 0xffff
		if got != want {
			t.Fatalf("%x encoded as %x", want, got)
		}
	})
}

func FuzzSource(f *testing.F) {
	f.Add(uint64(0x0700beef112abcde))
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, v uint64) {
		if got := mailbox.DecodeSource(v).Encode(); got != v&0x0f00ffff_3f3fffff {
			t.Fatalf("%016x encoded as %016x", v, got)
		}
	})
}
