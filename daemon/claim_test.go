package daemon

import "testing"

// TestClaimWords compares the message with words computed by hand: kind 1,
// PDIDs 0x0102 to 0xfffe, version 1; and kind 2 with a PDID wired over it.
func TestClaimWords(t *testing.T) {
	m := claimMessage{kind: claimKind, first: 0x0102, last: 0xfffe, number: 7}
	// 1 | 0x102<<18 | 0xfffe<<34 | 1<<50
	const word = 1 | 0x0408_0000 | 0x3_fff8_0000_0000 | 0x4_0000_0000_0000
	if w := m.encode(); w != [claimWords]uint64{word, 7} {
		t.Errorf("%#x, want %#x", w, uint64(word))
	}
	for _, tt := range []struct {
		name  string
		words []uint64
		want  claimMessage
		ok    bool
	}{
		{"claim", []uint64{word, 7}, m, true},
		{"conflict, stamped", []uint64{word + 1 | 0xbeef<<2, 9}, claimMessage{conflictKind, 0x0102, 0xfffe, 9}, true},
		{"no kind", []uint64{word - 1, 7}, claimMessage{}, false},
		{"kind 3", []uint64{word + 2, 7}, claimMessage{}, false},
		{"another version", []uint64{word + 1<<50, 7}, claimMessage{}, false},
		{"reserved", []uint64{word | 1<<54, 7}, claimMessage{}, false},
		{"PDID 0", []uint64{1 | 1<<50, 7}, claimMessage{}, false},
		{"last before first", []uint64{1 | 5<<18 | 4<<34 | 1<<50, 7}, claimMessage{}, false},
		{"one word", []uint64{word}, claimMessage{}, false},
		{"three words", []uint64{word, 7, 0}, claimMessage{}, false},
		{"nothing", nil, claimMessage{}, false},
	} {
		got, ok := decodeClaim(tt.words)
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %+v, %v", tt.name, got, ok)
		}
	}
}
