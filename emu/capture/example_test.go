package capture_test

import (
	"bytes"
	"fmt"

	"github.com/exanet/pfd/emu/capture"
	"github.com/exanet/pfd/internal/pcapng"
	"github.com/exanet/pfd/soc/wire"
)

// An acknowledgement between two nodes, as Wireshark reads it.
func ExampleCapture() {
	c := &capture.Capture{All: true}
	c.See(0, &wire.Frame{Header: wire.Header{Kind: wire.Ack, SrcNode: 1, DstNode: 0}})
	done := make(chan struct{})
	close(done)
	var file bytes.Buffer
	if err := c.Copy(done, "example", func(b []byte) error { file.Write(b); return nil }); err != nil {
		fmt.Println(err)
		return
	}
	for file.Len() > 0 {
		n, block, err := pcapng.Blocks(file.Bytes(), true)
		if err != nil {
			fmt.Println(err)
			return
		}
		file.Next(n)
		fmt.Println(pcapng.TypeOf(block) == pcapng.TypePacket)
	}
	// Output:
	// false
	// false
	// true
}
