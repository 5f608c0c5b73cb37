package atomics_test

import (
	"fmt"

	"github.com/exanet/pfd/device/atomics"
)

// A thread adds 1 to the second word of node 0's partition. It writes the op code; its packetizer
// stamps the bits below.
func ExampleRequest_Encode() {
	var words [8]uint64
	r := atomics.Request{Op: atomics.FetchAdd, Address: atomics.At(0, 8), Args: [atomics.MaxArgs]uint64{1}}
	for _, w := range words[:r.Encode(words[:])] {
		fmt.Printf("%016x\n", w)
	}
	// Output:
	// 1000000000000000
	// 0001000000000008
	// 0000000000000001
}
