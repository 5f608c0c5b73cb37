package daemon

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/exanet/pfd/device"
)

// A claim of another pfd is a valid range of PDIDs, or is ignored.
func FuzzClaim(f *testing.F) {
	m := claimMessage{kind: claimKind, first: 1, last: 64, number: 7}.encode()
	f.Add(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, m[0]), m[1]))
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		var words []uint64
		for ; len(b) >= 8; b = b[8:] {
			words = append(words, binary.LittleEndian.Uint64(b))
		}
		m, ok := decodeClaim(words)
		if !ok {
			return
		}
		if m.first == 0 || m.first > m.last {
			t.Errorf("a claim of %d to %d", m.first, m.last)
		}
		const wired = uint64(device.PDIDMask) << 2 // the sender's hardware writes it
		if again := m.encode(); again[0] != words[0]&^wired || again[1] != words[1] {
			t.Errorf("%x is written again as %x", words, again)
		}
	})
}

// The file of groups and --pdid-range are within their bounds, or an error that matches
// ErrConfig.
func FuzzNetwork(f *testing.F) {
	f.Add("1000 app 8\n# remark\n0 b 0x10 # more\n", "1-64")
	f.Add("1 a 65529\n", "0x10-0xffff")
	f.Add("x", "-")
	f.Fuzz(func(t *testing.T, groups, pdids string) {
		list, err := ParseGroups(groups, 8)
		if err != nil && !errors.Is(err, ErrConfig) {
			t.Errorf("groups %q: %v", groups, err)
		}
		for _, g := range list {
			if g.First == 0 || int(g.First)+8-1 > device.PDIDMask {
				t.Errorf("groups %q: %+v", groups, g)
			}
		}
		first, last, err := ParsePDIDs(pdids)
		switch {
		case err != nil && !errors.Is(err, ErrConfig):
			t.Errorf("PDIDs %q: %v", pdids, err)
		case err == nil && pdids != "" && (first == 0 || last < first):
			t.Errorf("PDIDs %q: %d to %d", pdids, first, last)
		}
	})
}
