package tree

import (
	"bytes"
	"errors"
	"testing"
)

func TestMessage(t *testing.T) {
	m := Message{Asked, 0x84_0003, Token{3, 0, 0x84, 9}, 1000, 2, 0x01020304}
	b := m.Encode()
	want := append([]byte{2, 3, 0, 0x84, 3, 0, 0x84, 9}, append(make([]byte, 12), 0xe8, 3, 0, 0, 2, 0, 0, 0, 4, 3, 2, 1)...)
	if !bytes.Equal(b[:], want) {
		t.Errorf("%x, not %x", b, want)
	}
	for _, b := range [][]byte{nil, want[1:], append(want, 0), append([]byte{0}, want[1:]...), append([]byte{7}, want[1:]...)} {
		if m, err := Decode(b); !errors.Is(err, ErrMessage) {
			t.Errorf("%x: %+v, %v", b, m, err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	m := Message{Known, 0x84_0003, Token{1}, 1, 2, 3}
	b := m.Encode()
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Decode(b); err == nil {
			if got := m.Encode(); !bytes.Equal(got[:], b) {
				t.Errorf("%x, not %x", got, b)
			}
		}
	})
}
