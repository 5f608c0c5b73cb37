package view

import (
	"encoding/binary"
	"testing"
)

// TestDisarm: a word that is present is loaded and cleared, and any other counts as not 0; its page is
// entered again once it is in memory.
func TestDisarm(t *testing.T) {
	r := start(t, 4)
	arm := func(v uint32) { binary.NativeEndian.PutUint32(r.own[page+8:], v) }
	is := func() uint32 { return binary.NativeEndian.Uint32(r.own[page+8:]) }
	const word = at + page + 8
	if !r.Disarm(word) || r.resident() != 0 {
		t.Errorf("an absent page is not armed, or brought in: %#x", r.resident())
	}
	for _, v := range []uint32{1, 0, 1 << 31} {
		arm(v)
		r.Enter(at+page, 1, 1)
		if armed := r.Disarm(word); armed != (v != 0) || is() != 0 {
			t.Errorf("%#x: armed %v, then %#x", v, armed, is())
		}
	}
	r.punch(1, 1)
	if !r.Disarm(word) || r.resident() != 0 {
		t.Errorf("a page that was punched out is not armed, or brought in: %#x", r.resident())
	}
	if arm(0); !r.Disarm(word) || r.Disarm(word) {
		t.Error("a page that is there again is not entered again")
	}
	if err := r.Share(at+64*page, page, r.fd, 0, false); err != nil {
		t.Fatal(err)
	}
	r.Enter(at+64*page, 1, 1)
	r.touch(0)
	first := r.own[0]
	if !r.Disarm(at+64*page) || !r.Disarm(at-4) || !r.Disarm(0) || r.own[0] != first {
		t.Error("memory that is not shared for writing is not armed, or written")
	}
	arm(7)
	r.Unshare(at, 4*page)
	if !r.Disarm(word) || is() != 7 {
		t.Errorf("memory that is shared no more is not armed, or written: %d", is())
	}
}
