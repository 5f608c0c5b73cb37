package pcapng

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// sample returns one block of each type.
func sample() []byte {
	b := Interface(Section(nil, "pfd"), 60, "node0-node1")
	b = Packet(b, 0, 0x1122334455667788, []byte("abcde"), 3, Inbound, 2)
	return Statistics(b, 0, 1<<32+1, 5, 4)
}

// The blocks as drawn in draft-ietf-opsawg-pcapng 4.1 to 4.4, worked out by hand.
func TestGolden(t *testing.T) {
	want := `
		0a0d0d0a 28000000 4d3c2b1a 0100 0000 ffffffffffffffff 0400 0300 70666400 00000000 28000000
		01000000 30000000 9300 0000 3c000000 0200 0b00 6e6f6465302d6e6f64653100 0900 0100 09000000 00000000 30000000
		06000000 3c000000 00000000 44332211 88776655 03000000 05000000 61626300
		0200 0400 01000000 0400 0800 0200000000000000 00000000 3c000000
		05000000 34000000 00000000 01000000 01000000 0400 0800 0500000000000000 0500 0800 0400000000000000 00000000 34000000`
	if got := hex.EncodeToString(sample()); got != strings.Join(strings.Fields(want), "") {
		t.Errorf("%s", got)
	}
}

func TestBlocks(t *testing.T) {
	var types []uint32
	s := bufio.NewScanner(bytes.NewReader(sample()))
	s.Split(Blocks)
	for s.Scan() {
		types = append(types, TypeOf(s.Bytes()))
		iface, lost, ok := Lost(s.Bytes())
		if ok != (TypeOf(s.Bytes()) == TypeStatistics) || ok && (iface != 0 || lost != 4) {
			t.Errorf("block %x: %d lost at %d, %v", s.Bytes(), lost, iface, ok)
		}
	}
	if s.Err() != nil || len(types) != 4 {
		t.Errorf("types %x, %v", types, s.Err())
	}
}

func FuzzBlocks(f *testing.F) {
	f.Add(sample())
	f.Add(sample()[:50])
	f.Add([]byte{6, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			n, block, err := Blocks(b, true)
			if err != nil || n == 0 {
				return
			}
			if n < 12 || n > len(b) || len(block) != n {
				t.Fatalf("a block of %d bytes of %d, advance %d", len(block), len(b), n)
			}
			Lost(block)
			b = b[n:]
		}
	})
}
