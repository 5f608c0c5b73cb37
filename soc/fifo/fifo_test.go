package fifo

import (
	"testing"

	"github.com/exanet/pfd/device"
)

func fault(tr, seq int, page uint64) device.FaultEntry {
	return device.FaultEntry{
		Source: 0x2abcde, Transaction: device.TransactionID(tr), Sequence: device.Sequence(seq), PDID: 0x1234,
		Page: page, Response: device.ResponseSlaveError,
	}
}

// read is one read of the head: a 32-bit read of a word, or a 64-bit read of a half.
type read struct {
	half bool
	n    int
}

// The reading rules of spec/hardware.md 4: the read that covers d pops if a, b and c have been
// read since the last pop; otherwise it pops nothing.
func TestReadingRules(t *testing.T) {
	a, b, c, d := read{false, 0}, read{false, 1}, read{false, 2}, read{false, 3}
	ab, cd := read{true, 0}, read{true, 1}
	for _, tt := range []struct {
		name  string
		reads []read
		left  int // of three entries
	}{
		{"four words in order", []read{a, b, c, d}, 2},
		{"two halves", []read{ab, cd}, 2},
		{"second half alone", []read{cd, cd, cd}, 3},
		{"d alone", []read{d, d}, 3},
		{"d again", []read{a, b, c, d, d, d}, 2},
		{"c missing", []read{a, b, d}, 3},
		{"c late", []read{a, b, d, c}, 3},
		{"c late, then d", []read{a, b, d, c, d}, 2},
		{"any order before d", []read{c, b, a, d}, 2},
		{"half, then words", []read{ab, c, d}, 2},
		{"words, then half", []read{a, b, cd}, 2},
		{"first half twice", []read{ab, ab, cd}, 2},
		{"two entries", []read{ab, cd, ab, cd}, 1},
		{"half of the second", []read{ab, cd, cd}, 2},
		{"all, then one more", []read{ab, cd, ab, cd, ab, cd, ab, cd}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f FIFO
			for i := range 3 {
				f.Push(fault(i, 1, uint64(i)), 100)
			}
			for _, r := range tt.reads {
				if r.half {
					f.Read64(r.n)
				} else {
					f.Read32(r.n)
				}
			}
			if f.Level() != tt.left {
				t.Errorf("%d entries left, want %d", f.Level(), tt.left)
			}
		})
	}
}

func TestEntriesComeBackWhole(t *testing.T) {
	var f FIFO
	for i := range 40 {
		f.Push(fault(i, 3*i, 0x7f0000000+uint64(i)), uint32(1000+i))
	}
	for i := range 40 {
		if f.Ext() != uint32(1000+i) {
			t.Fatalf("entry %d: EXT %d", i, f.Ext())
		}
		lo, hi := f.Read64(0), f.Read64(1)
		e, ok := device.DecodeFaultEntry([4]uint32{uint32(lo), uint32(lo >> 32), uint32(hi), uint32(hi >> 32)})
		if want := fault(i, 3*i, 0x7f0000000+uint64(i)); !ok || e != want {
			t.Fatalf("entry %d: %+v, want %+v", i, e, want)
		}
	}
	if f.Read64(0) != 0 || f.Read64(1) != 0 || f.Ext() != 0 {
		t.Error("an empty FIFO reads other than zero")
	}
}

// An entry equal in source, transaction, sequence and page to one of the last two pushed is
// skipped (spec/hardware.md 4, Pushing).
func TestDuplicates(t *testing.T) {
	var f FIFO
	x, y, z := fault(1, 1, 5), fault(2, 1, 5), fault(1, 1, 6)
	for i, s := range []struct {
		e    device.FaultEntry
		want Outcome
	}{
		{x, Pushed}, {x, Duplicate}, {y, Pushed}, {x, Duplicate}, {y, Duplicate}, {z, Pushed}, {y, Duplicate},
		{x, Pushed}, // two others were pushed since
		{fault(1, 2, 5), Pushed},
	} {
		if got := f.Push(s.e, 0); got != s.want {
			t.Errorf("push %d: %d, want %d", i, got, s.want)
		}
	}
}

func TestOverflow(t *testing.T) {
	var f FIFO
	if s := f.Status(); s != device.FIFOEmpty {
		t.Errorf("empty: STATUS %#x", s)
	}
	for i := range device.FIFODepth {
		if f.Push(fault(i, 1, uint64(i)), 0) != Pushed {
			t.Fatalf("entry %d of 512 was not accepted", i)
		}
	}
	if s := f.Status(); s != 512|device.FIFOFull {
		t.Errorf("full: STATUS %#x", s)
	}
	if f.Push(fault(1, 99, 1), 0) != Overflowed {
		t.Error("the 513th entry was accepted")
	}
	if s := f.Status(); s != 512|device.FIFOFull|device.FIFOOverflow {
		t.Errorf("overflown: STATUS %#x", s)
	}
	f.ClearStatus(device.FIFOEmpty)
	if f.Status()&device.FIFOOverflow == 0 {
		t.Error("overflow cleared by another bit")
	}
	f.ClearStatus(device.FIFOOverflow)
	if f.Status()&device.FIFOOverflow != 0 {
		t.Error("overflow is W1C and was not cleared")
	}
	f.Reset()
	if s := f.Status(); s != device.FIFOEmpty {
		t.Errorf("after reset: STATUS %#x", s)
	}
}

func TestResetDropsHalfReadHead(t *testing.T) {
	var f FIFO
	f.Push(fault(1, 1, 1), 0)
	f.Read64(0)
	f.Reset()
	f.Push(fault(2, 1, 1), 0)
	f.Read64(1)
	if f.Level() != 1 {
		t.Error("the second half popped an entry whose first half has not been read")
	}
}

// A source's duplicates are forgotten with its life; those of other sources are not.
func TestForget(t *testing.T) {
	var f FIFO
	other := fault(1, 1, 7)
	other.Source++
	f.Push(fault(1, 1, 7), 0)
	f.Push(other, 0)
	f.Forget(other.Source)
	if f.Push(other, 0) != Pushed || f.Push(fault(1, 1, 7), 0) != Duplicate {
		t.Error("a fault of a new life is a duplicate, or another source's is not")
	}
	f.Forget(0x2abcde)
	if f.Push(fault(1, 1, 7), 0) != Pushed || f.Level() != 4 {
		t.Errorf("%d entries", f.Level())
	}
}
