package netlink_test

import (
	"fmt"

	"github.com/exanet/pfd/netlink"
)

// A fault as pfd reports it to a process that pages in itself.
func ExampleFault() {
	f := netlink.Fault{Source: 1, Transaction: 7, Sequence: 3, VA: 0x7f0000001000, PDID: 2, Write: true, Pages: 1}
	b, err := netlink.AppendMessage(nil, &f, 1, 1234)
	if err != nil {
		fmt.Println(err)
		return
	}
	same, err := netlink.ParseMessage(b)
	fmt.Println(same == f, err)
	fmt.Println(same.VA, same.Pages)
	// Output:
	// true <nil>
	// 0x7f0000001000 1
}
