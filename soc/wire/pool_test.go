package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/exanet/pfd/device"
)

// TestPayloadsAreNobodyElses: a payload has one holder at a time, across slabs' ends and in any
// order of return.
func TestPayloadsAreNobodyElses(t *testing.T) {
	var p Pool
	rng := rand.New(rand.NewPCG(1, 2))
	held := map[byte][]byte{}
	for step := range 4000 {
		if k := byte(rng.Uint32()); held[k] != nil {
			if want := bytes.Repeat([]byte{k}, len(held[k])); !bytes.Equal(held[k], want) {
				t.Fatalf("step %d: payload %d has another holder's bytes", step, k)
			}
			p.PutPayload(held[k])
			delete(held, k)
		} else {
			b := p.Payload(1 + rng.IntN(device.BlockSize))
			for i := range b {
				b[i] = k
			}
			held[k] = b
		}
	}
	if n := len(p.slabs); n > 256/slabBlocks {
		t.Errorf("%d slabs for 256 payloads: want %d at most", n, 256/slabBlocks)
	}
	p.PutPayload(make([]byte, device.BlockSize)) // not of this pool: ignored
	p.PutPayload(nil)
}

func TestAdjoin(t *testing.T) {
	var p Pool
	a, b, short := p.Payload(device.BlockSize), p.Payload(device.BlockSize), p.Payload(100)
	after := p.Payload(device.BlockSize)
	for _, tc := range []struct {
		name string
		a, b []byte
		ok   bool
	}{
		{"neighbours", a, b, true},
		{"a short one last", b, short, true},
		{"a gap behind a short one", short, after, false},
		{"the wrong way round", b, a, false},
		{"one between", a, short, false},
		{"itself", a, a, false},
		{"nothing", a, nil, false},
		{"to nothing", nil, a, false},
		{"another pool's", a, make([]byte, 5), false},
	} {
		both, ok := Adjoin(tc.a, tc.b)
		if ok != tc.ok {
			t.Errorf("%s: %v, want %v", tc.name, ok, tc.ok)
		}
		if ok && (len(both) != len(tc.a)+len(tc.b) || &both[0] != &tc.a[0] || &both[len(tc.a)] != &tc.b[0]) {
			t.Errorf("%s: not the bytes of both", tc.name)
		}
	}
	p = Pool{}
	row := p.Payload(device.BlockSize)
	for range slabBlocks - 1 {
		row, _ = Adjoin(row, p.Payload(device.BlockSize))
	}
	if len(row) != slabBlocks*device.BlockSize {
		t.Errorf("a slab in a row is %d bytes", len(row))
	}
	if _, ok := Adjoin(row, p.Payload(1)); ok {
		t.Error("joined across a slab's end")
	}
}

// The pieces of a frame contain each of its packets once; the last has the words.
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		present uint64
		n, want int
	}{{1, 4, 1}, {0b11, 4, 2}, {^uint64(0), 4, 4}, {0b1010_0000_0001, 2, 2}, {0b111, 1, 1}} {
		var p Pool
		f := p.Frame()
		f.Kind, f.ID, f.HasWords, f.Completion.Last = Data, 7, true, 3
		f.Payload, f.Present, f.Corrupt = p.Payload(device.BlockSize), c.present, 1
		all := p.Split(f, c.n)
		seen, corrupt := uint64(0), uint64(0)
		for i, g := range all {
			if g.Present == 0 || g.Present&seen != 0 || g.Present < seen || g.ID != 7 || !g.HasWords || g.WordsMissing != (i < len(all)-1) {
				t.Errorf("%b: piece %d: %+v", c.present, i, g)
			}
			seen |= g.Present
			corrupt |= g.Corrupt
		}
		if len(all) != c.want || seen != c.present || corrupt != c.present&1 {
			t.Errorf("%b in %d: %d pieces of %b, corrupt %b", c.present, c.n, len(all), seen, corrupt)
		}
		for _, g := range all {
			p.Put(g)
		}
		if p.slabs[0].taken != 0 {
			t.Errorf("%b: the payload is still in use", c.present)
		}
	}
}
