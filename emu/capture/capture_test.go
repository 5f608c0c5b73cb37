package capture

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/pcapng"
	"github.com/exanet/pfd/soc/wire"
)

// A link to another host begins with this host's node, and is one for all nodes of that host.
func TestOtherHost(t *testing.T) {
	c := &Capture{All: true, Host: func(id device.NodeID) string {
		if id < 4 {
			return "b"
		}
		return ""
	}}
	for _, f := range []struct {
		from, to  device.NodeID
		link      int
		direction uint32
	}{
		{4, 0, 0, pcapng.Outbound}, {1, 4, 0, pcapng.Inbound}, {5, 3, 1, pcapng.Outbound}, {5, 4, 2, pcapng.Inbound},
	} {
		if i, direction := c.link(&wire.Frame{Header: wire.Header{SrcNode: f.from, DstNode: f.to}}); i != f.link || direction != f.direction {
			t.Errorf("%+v: link %d, direction %d", f, i, direction)
		}
	}
	for _, name := range []string{"node4-b", "node5-b", "node4-node5"} {
		if !bytes.Contains(c.buf, []byte(name)) {
			t.Errorf("no interface %s", name)
		}
	}
}

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
