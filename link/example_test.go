package link_test

import (
	"fmt"

	"github.com/exanet/pfd/link"
)

// A range of node ids names the nodes of one host.
func ExampleRange() {
	r := link.Range{First: 4, Last: 7}
	fmt.Println(r, r.Contains(7), r.Contains(8))
	// Output: 4-7 true false
}
