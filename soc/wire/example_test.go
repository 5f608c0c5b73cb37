package wire_test

import (
	"fmt"

	"github.com/exanet/pfd/soc/wire"
)

// A block of 600 bytes is sent over the link in packets of 256.
func ExampleCut() {
	block := make([]byte, 600)
	f := wire.Frame{
		Header:  wire.Header{Kind: wire.Data, SrcNode: 0, DstNode: 1, VA: 0x7f0000001000, Length: 600, Remaining: 600, Last: true},
		Present: wire.All(len(block)),
		Payload: block,
	}
	err := wire.Cut(&f, nil, func(b []byte) error {
		p, err := wire.DecodePacket(b)
		fmt.Println(p.VA, p.Offset, len(p.Payload), p.Corrupt)
		return err
	})
	fmt.Println(err)
	// Output:
	// 0x7f0000001000 0 256 false
	// 0x7f0000001100 256 256 false
	// 0x7f0000001200 512 88 false
	// <nil>
}
