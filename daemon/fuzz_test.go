package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/exanet/pfd/control"
	"github.com/exanet/pfd/device"
)

// A claim of another pfd is a range of PDIDs, and nothing that is not one is taken.
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

// What a file and a flag of a network say is in range or an error of the
// configuration.
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

// A request is refused, or all in it is within its bounds.
func FuzzQuery(f *testing.F) {
	f.Add("GET", "node=1&n=5")
	f.Add("POST", "node=0&slot=3&pdid=0x10")
	f.Add("GET", "window=pl&window=smmu")
	f.Add("GET", "n=%zz;slot=-1")
	const nodes = 2
	f.Fuzz(func(t *testing.T, method, query string) {
		ctx := context.WithValue(context.Background(), peerKey{}, peer{uid: 1})
		r := (&http.Request{Method: method, URL: &url.URL{Path: "/", RawQuery: query}}).WithContext(ctx)
		for _, e := range []endpoint{
			{keys: []string{"node", "n", "window"}},
			{keys: []string{"node", "slot", "pdid"}, post: true},
			{},
		} {
			q, err := parse(r, e, nodes)
			if err != nil {
				var answer *failure
				if !errors.As(err, &answer) || answer.status < 400 || answer.status > 499 {
					t.Errorf("%s %q: %v", method, query, err)
				}
				continue
			}
			if q.node != control.AllNodes && (q.node < 0 || q.node >= nodes) || q.n < 1 || q.n > control.MaxFaults || q.slot < -1 || q.slot >= device.Slots {
				t.Errorf("%s %q: %+v", method, query, q)
			}
			if e.post && (method != http.MethodPost || q.slot < 0 || q.pdid == 0) {
				t.Errorf("%s %q changes something: %+v", method, query, q)
			}
		}
	})
}
