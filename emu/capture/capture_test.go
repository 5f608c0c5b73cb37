package capture

import (
	"encoding/binary"
	"testing"

	"github.com/exanet/pfd/internal/pcapng"
	"github.com/exanet/pfd/soc/wire"
)

// A capture that nobody reads loses packets and counts them; its memory is limited.
func TestLoses(t *testing.T) {
	c := &Capture{All: true}
	f := &wire.Frame{Header: wire.Header{Kind: wire.Ack, DstNode: 1}}
	const packets = room/64 + 1000
	for range packets {
		c.See(1, f)
	}
	first := c.take(nil)
	if len(first) > room+4096 {
		t.Errorf("%d bytes wait", len(first))
	}
	c.See(2, f)
	kept, lost, before := 0, uint64(0), uint64(0)
	for b := append(first, c.take(nil)...); len(b) > 0; {
		n, block, err := pcapng.Blocks(b, true)
		if err != nil {
			t.Fatal(err)
		}
		b = b[n:]
		if _, l, ok := pcapng.Lost(block); ok {
			lost = l
		}
		if pcapng.TypeOf(block) == pcapng.TypePacket {
			kept++
			before = binary.LittleEndian.Uint64(append(block[len(block)-16:len(block)-8:len(block)-8], 0)) // of the last one
		}
	}
	if kept+int(lost) != packets+1 || lost == 0 {
		t.Errorf("%d kept, %d lost of %d", kept, lost, packets+1)
	}
	if before != lost {
		t.Errorf("the packet behind the gap says %d lost, want %d", before, lost)
	}
}
