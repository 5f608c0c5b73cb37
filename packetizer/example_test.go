package packetizer_test

import (
	"fmt"

	"github.com/exanet/pfd/packetizer"
)

// The fields that a packetizer stamps on all that its process sends.
func ExampleConfig() {
	v := packetizer.Config{PDID: 2, Node: 1, Interface: 16, Enable: true}.Encode()
	fmt.Printf("%#016x\n", v)
	c := packetizer.DecodeConfig(v)
	fmt.Println(c.PDID, c.Node, c.Interface, c.Enable)
	// Output:
	// 0x8000004000010002
	// 2 1 16 true
}
