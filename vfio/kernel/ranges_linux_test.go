package kernel

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// info returns the answer of Linux 7.2 for an intel-iommu of 39 bits (x86-64: little-endian),
// with the migration capability (id 2) before the ranges: worked out from linux/vfio.h.
func info() []byte {
	le := binary.LittleEndian
	var b []byte
	b = le.AppendUint32(b, 24+24+48) // argsz
	b = le.AppendUint32(b, 3)        // PGSIZES, CAPS
	b = le.AppendUint64(b, 0x40201000)
	b = le.AppendUint32(b, 24)
	b = le.AppendUint32(b, 0)
	b = append(b, 2, 0, 1, 0, 48, 0, 0, 0) // id 2, version 1, next at 48
	b = append(b, make([]byte, 16)...)
	b = append(b, 1, 0, 1, 0, 0, 0, 0, 0) // id 1, version 1, the last
	b = le.AppendUint32(b, 2)
	b = le.AppendUint32(b, 0)
	for _, v := range []uint64{0, 0xfedfffff, 0xfef00000, 0x7fffffffff} {
		b = le.AppendUint64(b, v)
	}
	return b
}

func TestRanges(t *testing.T) {
	got, err := decodeRanges(info())
	if want := []Range{{0, 0xfedfffff}, {0xfef00000, 0x7fffffffff}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, err, want)
	}
	b := info()
	b[4] = 1 // no capabilities
	if got, err := decodeRanges(b); err != nil || !slices.Equal(got, []Range{{0, ^uint64(0)}}) {
		t.Errorf("without capabilities: %v %v", got, err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":           func(b []byte) []byte { return b[:20] },
		"behind the end":  func(b []byte) []byte { b[16] = 250; return b },
		"a circle":        func(b []byte) []byte { b[28] = 24; return b },
		"too many ranges": func(b []byte) []byte { b[56] = 3; return b },
	} {
		if _, err := decodeRanges(change(info())); !errors.Is(err, errInfo) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeRanges(f *testing.F) {
	f.Add(info())
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeRanges(b); err == nil && len(r)*rangeSize > max(len(b), rangeSize) {
			t.Errorf("%d ranges in %d bytes", len(r), len(b))
		}
	})
}
