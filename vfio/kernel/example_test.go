//go:build linux

package kernel_test

import (
	"fmt"

	"github.com/exanet/pfd/vfio/kernel"
)

// Addresses as lspci -D prints them.
func ExampleCheckAddress() {
	fmt.Println(kernel.CheckAddress("0000:01:00.0"))
	fmt.Println(kernel.CheckAddress("01:00.0") != nil)
	// Output:
	// <nil>
	// true
}
